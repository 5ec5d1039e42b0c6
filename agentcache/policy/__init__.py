"""Decides which cache block is evicted next, and what of a prompt is reused: purely, without vLLM, torch or a clock."""
