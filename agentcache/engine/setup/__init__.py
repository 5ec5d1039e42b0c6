"""Makes a scheduler's parts, here and nowhere else: each from those that it depends on, as constructor arguments.

`parts.py` has the order; `jobs.py` makes what follows jobs, `cpu_cache.py` the CPU cache.
"""
