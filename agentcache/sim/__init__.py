"""Runs vLLM's own scheduler under a virtual clock: policies compared on a GPU that is only a model of one."""
