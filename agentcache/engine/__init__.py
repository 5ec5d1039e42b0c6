"""The plug-in inside vLLM.

It runs in the engine core, which loads `scheduler.py` after `vllm/compat.py` has checked vLLM; what runs in the process
that takes requests is `agentcache/front_end/`. Both take vLLM's names from `vllm/`. `setup/` puts together what the
policy in force (`policy_choice.py`) brings to the scheduler.

What the scheduler is made of, a room each:

- `blocks/`: the queue of free blocks, pins, and what losing a block costs
- `jobs/`: which job and turn a request belongs to, and what is learnt and shown of jobs
- `order/`: which request comes next, which one has to wait, and how much prefill a step may hold
- `segments/`: reuse of cached blocks behind gaps, by fill requests
- `cpu_cache/`: the second cache, in the host's memory
- `replies/`: which tools a reply calls, and how it ended
- `record/`: the file of requests that a server has seen
- `rpc/`: what front ends ask of a running engine core

`marks.py` has what comes with a request, `constants.py` the names that both processes know.
"""
