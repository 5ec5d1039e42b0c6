"""Replies: which tools they call, how they end, and replies that a client forces.

In the engine core: `tool_reader.py` (with vLLM's own parser, found by `parser_choice.py`, its errors kept short by
`parser_log.py`), `stop_strings.py`, `forced_calls.py` for forced replies without text, and `ended_reply.py` for what is
read later. In processes that take requests: `declared_tools.py` and `forced_reply.py`; on the V1 model runner the
latter's logits processor too.
"""
