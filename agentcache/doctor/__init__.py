"""Asks a running server why its prompts were not cached, and says what to do about it."""
