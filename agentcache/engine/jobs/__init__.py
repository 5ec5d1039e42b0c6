"""Jobs: the agent runtime (`tool_runtime`) beside vLLM's scheduler.

`tracker.py` is told of every request's arrival, admission and end, and steers pins and eviction; `setup.py` puts it
together. `prefix_matcher.py` finds the job and the turn that a prompt goes on from, with `chain_owners.py` and
`turn_chains.py`; `request_state.py` has what is known of a request under way; `finish_classes.py` and
`reuse_factors.py` tell the evictor how a turn ended; `duration_store.py` keeps tool durations over restarts.
`stats.py` and `views.py` are what is shown of jobs; nothing is decided by them.
"""
