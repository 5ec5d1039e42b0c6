"""What front ends ask of a running engine core, by vLLM's utility calls.

`core_calls.py` adds the methods; `snapshot.py` answers with counts, `job_calls.py` with jobs, and `policy_switch.py`
gives the engine its next policy. All answers are plain values.
"""
