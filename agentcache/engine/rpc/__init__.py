"""Answers what front ends ask of a running engine core, by vLLM's utility calls.

`core_calls.py` adds the methods, and answers with jobs, which `job_views.py` shows; `snapshot.py` reads what metrics
are made of; `policy_switch.py` gives the engine its next policy. All answers are plain values (`engine/views.py`).
"""
