"""Blocks: who is evicted next, what is kept while a tool runs, and what it costs to lose it.

`block_queue.py` stands in for vLLM's queue of free blocks and asks an evictor for victims; `pins.py` keeps the blocks
of finished turns for a time; `evictor_inputs.py` tells evictors what they need of model, GPU and cache;
`turn_cost.py` prices what a turn has left; `lru_comparison.py` tells what the policy saves against LRU; `block_keys.py`
names a request's blocks as vLLM's cache does. The evictors themselves know nothing of vLLM: `agentcache/policy`.
"""
