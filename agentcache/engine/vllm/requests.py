"""vLLM's requests as clients send them, one class an API."""

from __future__ import annotations

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

__all__ = [
    "AnthropicMessagesRequest",
    "ChatCompletionRequest",
    "CompletionRequest",
    "ResponsesRequest",
    "TranscriptionRequest",
    "TranslationRequest",
]
