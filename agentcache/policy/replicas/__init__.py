"""Replicas: at which of several engines a job begins, and when it leaves the engine that has its KV.

`placement.py` decides, by whose chain of blocks a prompt goes on from (`tool_runtime/learning/job_blocks.py`).
`chain.py` turns tokens into block hashes and estimates what each engine has cached, `engine_load.py` what waits and
lives there; `job_homes.py` remembers where each job is, and which of them go on. Nothing here knows vLLM.
"""
