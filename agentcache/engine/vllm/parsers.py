"""vLLM's tokenizers, and its parsers of tool calls and reasoning."""

from __future__ import annotations

from vllm.parser import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.tool_parsers import ToolParserManager

__all__ = [
    "ParserManager",
    "ReasoningParserManager",
    "ToolParserManager",
    "cached_tokenizer_from_config",
]
