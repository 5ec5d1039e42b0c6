"""Tracks jobs: which job a request belongs to, and which blocks its last turn left.

`tracker.py` keeps the books. `job_finder.py` finds the job of a request, by its name (`names.py`) or by the tokens
that it repeats: `prefix_matcher.py` compares it with the chains in `turn_chains.py`, `told_prompt.py` with what the
API server tells. `finish_classes.py` tells the evictor how a turn ended; `duration_store.py` keeps tool durations over
restarts.
"""
