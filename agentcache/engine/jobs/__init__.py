"""Tracks jobs: which job a request belongs to, which blocks its last turn left, and where those blocks went.

`tracker.py` keeps the books. `job_finder.py` finds the job of a request, by its name (`names.py`) or by the tokens
that it repeats: `prefix_matcher.py` compares it with the chains in `turn_chains.py`, `told_prompt.py` with what the
API server tells. `misses.py`, `evicted_blocks.py` and `losses.py` explain what was not cached, `prompt_change.py` what
a client has changed. `stats.py` and `views.py` count and show; `finish_classes.py` tells the evictor how a turn ended;
`duration_store.py` keeps tool durations over restarts.
"""
