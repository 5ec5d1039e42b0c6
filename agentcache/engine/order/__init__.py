"""Orders requests: which is next, and which has to wait.

`job_queue.py` replaces vLLM's waiting queue; `admission.py` holds requests back that would take pinned blocks, and has
new jobs leave room to others; `load_control.py` has jobs wait that want more than the caches hold.
"""
