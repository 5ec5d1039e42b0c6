"""Replicas: at which of several engines a job begins, and when it leaves the engine that has its KV.

`placement.py` decides. `chain.py` turns tokens into block hashes, `chain_owners.py` tells whose chain a prompt goes on
from; `known_blocks.py` estimates what each engine has cached, `engine_load.py` what waits and lives there,
`host_memory.py` what a CPU cache changes; `job_homes.py` remembers where each job is, `live_jobs.py`
which of them go on. Nothing here knows vLLM.
"""
