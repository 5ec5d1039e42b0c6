"""Replies in the engine core: which tools they call, how they end, and those that a client forces.

`ended_reply.py` tells how a reply ended, and reads it with vLLM's own parser, whose errors `parser_log.py` keeps short;
`forced_reply.py` has the V1 model runner sample a recorded one.
"""
