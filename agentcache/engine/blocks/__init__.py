"""Keeps or evicts KV blocks.

`block_queue.py` asks an evictor for victims in vLLM's block pool; `pins.py` keeps what a job left while its tool
runs; `checkpoints.py` tells what a model's layers need of it; `frees.py` frees what requests leave, with what the
evictor is to know; `evictor_inputs.py` derives costs; `preemption.py` chooses whom a request without blocks
preempts; `references.py` checks reference counts.
"""
