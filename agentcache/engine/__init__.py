"""The plug-in inside vLLM.

It runs in the engine core, which loads `scheduler.py` after `vllm/compat.py` has checked vLLM; what runs in the process
that takes requests is `agentcache/front_end/`. Both take vLLM's names from `vllm/`. `setup/` puts together what the
policy in force (`policy_choice.py`) brings to the scheduler.

What the scheduler is made of, a room each:

- `blocks/`: the queue of free blocks, pins, and what losing a block costs
- `jobs/`: which job and turn a request belongs to
- `order/`: which request comes next, and which one has to wait
- `segments/`: reuse of cached blocks behind gaps, by fill requests
- `cpu_cache/`: the second cache, in the host's memory
- `replies/`: which tools a reply calls, and how it ended
- `observe/`: what explains, counts, shows and records; it decides nothing
- `rpc/`: what front ends ask of a running engine core

No two of them import each other, by a contract in `pyproject.toml` that has their order. Below them is what several
know: `request_state.py`, a request in the engine, and what its prompt shares with the turn before; `waits.py`, why it
waits; `marks.py`, what comes with it; `cached_blocks.py`, which of its blocks are cached; `views.py`, what leaves the
engine's process, as plain values. `parts.py` has the hooks by which the scheduler asks the rooms, `chunking.py` limits
the prefill of a step, and `constants.py` has the names that both processes know.
"""
