"""Order: which waiting request is next, which has to wait, and how large a step's prefill may be.

`job_queue.py` replaces vLLM's waiting queue; `admission.py` holds requests back that would take pinned blocks, and
keeps what a waiting request will hit; `step_order.py` tells for how long, by what will be lost; `juniors.py` tells
whose requests leave room to others; `load_control.py` has jobs take turns that want more than the caches hold;
`chunking.py` shrinks prefills while many requests decode.
"""
