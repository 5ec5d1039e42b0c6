"""The plug-in inside vLLM.

How it gets in: `plugin.py` (vLLM's entry point, in every process), `front_end.py` (processes that take requests) and
`scheduler.py` (the engine core), each after `vllm/compat.py` has checked vLLM. All take vLLM's names from `vllm/`.
`setup.py` puts together what the policy in force (`policy_choice.py`) brings to the scheduler.

What the scheduler is made of, a room each:

- `blocks/`: the queue of free blocks, pins, and what losing a block costs
- `jobs/`: which job and turn a request belongs to, and what is learnt and shown of jobs
- `order/`: which request comes next, which one has to wait, and how much prefill a step may hold
- `segments/`: reuse of cached blocks behind gaps, by fill requests
- `replies/`: which tools a reply calls, and replies that a client forces
- `rpc/`: what front ends ask of a running engine core
- `measure/`: what benchmarks and `profile` do to an engine in their own process
"""
