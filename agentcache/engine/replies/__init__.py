"""Replies in the engine core: which tools they call, how they end, and those that a client forces.

`tool_reader.py` reads with vLLM's own parser, whose errors `parser_log.py` keeps short; `ended_reply.py` tells how a
reply ended; `forced_reply.py` has the V1 model runner sample a recorded one.
"""
