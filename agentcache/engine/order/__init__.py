"""Orders requests: which is next, which has to wait, and how large a step's prefill may be.

`job_queue.py` replaces vLLM's waiting queue and chooses what is preempted; `admission.py` holds requests back that
would take pinned blocks, and has new jobs leave room to others; `load_control.py` has jobs take turns that want more
than the caches hold; `chunking.py` shrinks prefills while many requests decode.
"""
