"""Runs agents: a loop between the model and its tools, the executor of tool calls, and the client."""
