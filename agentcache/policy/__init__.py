"""Decides which cache block is evicted next: pure decisions, without vLLM, torch or a clock of its own."""
