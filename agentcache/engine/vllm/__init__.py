"""The room for vLLM: everything else of agentcache takes what it needs of vLLM from here.

Where a release of vLLM moves or renames a thing, one line here changes. `internals.py` lists what we rely on beyond
names, `compat.py` checks it at each start, and `patches.py` says what is replaced and why. `connector.py` is the CPU
cache's KV connector: `host_memory.py` has a worker's memory, and `copiers.py` copies.
"""
