"""Replies: which tools they call, how they end, and replies that a client forces.

In the engine core: `tool_reader.py` (with vLLM's own parser, found by `parser_choice.py`, its errors kept short by
`parser_log.py`), `ended_reply.py`, and `forced_calls.py` for forced replies without text. In processes that take
requests `forced_reply.py`; on the V1 model runner its logits processor too.
"""
