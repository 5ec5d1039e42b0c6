"""The CPU cache: KV that the GPU's cache is about to lose is kept there, and fetched for its job.

`host_cache.py` is that memory's cache, with an evictor of its own; `storing.py` copies to it what the GPU evicts next
and, while there is room, what is fresh (`fresh_blocks.py`); `fetching.py` copies back what a waiting request lacks;
`tier.py` joins them, and `copies.py` keeps account of what is under way; `connector.py` is what vLLM loads, and
`worker.py` has vLLM's workers do the copies; `gpu_copier.py` makes the same copies for measurements. `obstacles.py`
says why all of this may be left to vLLM.
"""
