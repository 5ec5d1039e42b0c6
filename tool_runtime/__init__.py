"""Holds the agent runtime, in two rooms that know nothing of each other, of agentcache or of an engine.

- `learning/`: what the engine learns of agents: jobs, gaps, how long tools take, how long to keep a turn
- `agent/`: what an agent runs: the loop between model and tools, the executor of tool calls, the model client
"""
