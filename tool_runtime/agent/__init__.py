"""Plays the agents of recordings: a loop between the model and its tools, what tools gave, and the client."""
