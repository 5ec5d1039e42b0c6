"""Holds the agent runtime, in two rooms that know nothing of each other, of agentcache or of an engine.

- `learning/`: what the engine learns of agents: jobs, gaps, how long tools take, how long to keep a turn
- `agent/`: what plays an agent's recording: the loop between model and tools, recorded results, the model client
"""
