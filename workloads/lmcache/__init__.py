"""LMCache's traces of agents, requests with their text and time."""
