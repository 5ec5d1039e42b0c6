"""Jobs: the agent runtime (`tool_runtime`) beside vLLM's scheduler.

`tracker.py` follows every request's arrival, admission and end, and steers pins and eviction; `setup.py` puts it
together. `job_finder.py` finds the job, and `prefix_matcher.py` the turn that a prompt goes on from, with
`prompt_end.py` and `turn_chains.py`; `told_prompt.py` has what the API server tells of a prompt.
`miss_log.py` with `evicted_blocks.py` and `misses.py` explains what was not cached, `prompt_change.py` what a client
has changed. `request_state.py` has what is known of a request under way; `finish_classes.py` and
`reuse_factors.py` tell the evictor how a turn ended; `duration_store.py` keeps tool durations over restarts.
`stats.py` and `views.py` are what is shown of jobs; nothing is decided by them.
"""
