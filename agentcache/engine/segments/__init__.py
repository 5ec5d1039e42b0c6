"""Reuses cached blocks behind gaps, which fill requests compute (multi-segment reuse).

`engine/cached_blocks.py` finds which of a queued request's blocks can be reused; `agentcache/policy/reuse_plan.py`
chooses the gaps that are worth a fill request; `gap_filler.py` makes fill requests (`fill_request.py`), and holds the
blocks behind them; `scheduler.py` hides them from clients. `obstacles.py` says where none of this can be.
"""
