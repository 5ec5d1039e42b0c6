"""The CPU cache: KV that the GPU's cache is about to lose is kept there, and fetched for its job.

`host_cache.py` is that memory's cache, with an evictor of its own; `storing.py` copies to it what the GPU evicts next,
if it is worth a copy; `fetching.py` copies back what a waiting request lacks and is worth it; `tier.py` joins them, and
keeps account of what is under way.
`options.py` tells our connector from vLLM's, `connector.py` is what vLLM then loads, or says why its own must do;
`engine/setup/cpu_cache.py` puts all of this together. What a copy costs: `link.py`. What makes copies:
`engine/vllm/connector.py`.
"""
