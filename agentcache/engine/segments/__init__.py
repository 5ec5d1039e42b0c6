"""Multi-segment reuse: cached blocks are reused behind gaps, not only as a prefix.

`cached_blocks.py` knows which of a waiting request's blocks are cached; `layer_rule.py` and `hit_finder.py` find those
that all groups of layers together can go on from; `plan.py` decides which gaps are worth a fill request (what that is:
`fill_request.py`); `gap_filler.py` makes fill requests, and `holds.py` holds the blocks behind them; `filling_queue.py`
shows them to vLLM in front of the request; `scheduler.py` hides them from clients and counters.
"""
