"""Replays recorded jobs on a real engine, token by token, over the OpenAI API."""
