"""Reads replies that are over: how they ended, and which tools they call, with the API server's tool-call parser."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from agentcache.config import RuntimeConfig
from agentcache.config_reader import CONFIG_KEY
from agentcache.engine.constants import PLUGIN, TOOL_CHOICE_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.engine.marks import find_forced_calls, read_forced_calls, read_mark
from agentcache.engine.replies.parser_log import reading_again, shorten_parser_errors
from agentcache.engine.vllm.base import ModelConfig, VllmConfig, envs, init_logger
from agentcache.engine.vllm.requests import (
    ChatCompletionNamedFunction,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
    ParserManager,
    ToolParserManager,
    cached_tokenizer_from_config,
)
from agentcache.engine.vllm.types import Request, RequestStatus, SamplingParams
from agentcache.errors import InputError, in_one_line
from tool_runtime.learning.tool_key import ELSEWHERE, UNDECLARED, ToolKey, key_name, tool_keys

logger = init_logger("vllm.agentcache")

# vLLM's own connectors (NIXL, Mooncake, MoRIIO) are told that the reply is decoded elsewhere, LMCache's, where.
_HANDING_OVER = ("do_remote_decode", "disagg_spec")


@dataclass(slots=True, weakref_slot=True)
class EndedReply:
    """What is read of a request's reply in another thread. The request itself holds its prompt, a megabyte or more."""

    sampling_params: SamplingParams | None
    kv_transfer_params: dict[str, Any] | None
    max_tokens: int
    status: RequestStatus
    output_token_ids: list[int]

    @classmethod
    def of(cls, request: Request, most_tokens: int) -> EndedReply:
        """Take the last `most_tokens` tokens of a request that is over."""
        return cls(
            request.sampling_params,
            request.kv_transfer_params,
            request.max_tokens,
            request.status,
            request.output_token_ids[-most_tokens:],
        )


def is_handed_over(request: Request | EndedReply) -> bool:
    """Tell whether the reply ended here at its only token, for another engine to decode it.

    A prefill instance computes the prompt and one token, and hands the KV over. The proxy in front of both asks so:
    `max_tokens` 1, and one of `_HANDING_OVER` for the KV connector.
    """
    wanted = request.kv_transfer_params
    if not isinstance(wanted, dict) or not any(map(wanted.get, _HANDING_OVER)) or request.max_tokens != 1:
        return False
    return request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


def is_whole(request: Request) -> bool:
    """Tell whether the reply came to its own end here. A recorded one without text has no end-of-turn token.

    One that another engine goes on with is whole, though its text is not known here. So is one whose client wants
    no other end than its length (`ignore_eos`), as AIPerf's AgentX does: it was not cut off.
    """
    if request.status == RequestStatus.FINISHED_STOPPED or is_handed_over(request):
        return True
    return request.status == RequestStatus.FINISHED_LENGTH_CAPPED and (_is_recorded(request) or is_made_up(request))


def is_made_up(request: Request) -> bool:
    """Tell whether the length that `ignore_eos` asks for is all that ended the reply: what it says tells nothing."""
    params = request.sampling_params
    is_full = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
    return is_full and params is not None and params.ignore_eos and not _is_recorded(request)


def is_answer(request: Request, calls: Sequence[ToolKey]) -> bool:
    """Tell whether a whole reply is the last for now: it calls no tool, and is not made up."""
    return not calls and not is_made_up(request)


def _is_recorded(request: Request) -> bool:
    return find_forced_calls(request.sampling_params) is not None


def describe_status(request: Request) -> Literal["finished", "cut off", "aborted", "failed"]:
    """Describe how a request that is over has ended."""
    if is_whole(request):
        return "finished"
    if request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION):
        return "cut off"
    return "aborted" if request.status == RequestStatus.FINISHED_ABORTED else "failed"


# The core may be so far ahead of the server when it aborts a reply, and the longest stop strings are so long.
MAX_STOP_TOKENS = 256


class StopStrings:
    """Tells replies that ended by a stop string from aborted ones: the server sees it, and aborts them."""

    def __init__(self, model_config: ModelConfig | None) -> None:
        """Read replies of a model; None finds no such reply."""
        # Loaded by the core before it makes the scheduler. None where it runs without; the server then finds none.
        self._tokenizer: Any = None if model_config is None else cached_tokenizer_from_config(model_config)

    def divide(
        self, request_ids: str | Iterable[str] | None, requests: Mapping[str, Request]
    ) -> tuple[list[str], list[str]]:
        """Divide aborted requests, None being all of `requests`: those that ended at a stop string, and the others."""
        if isinstance(request_ids, str):
            request_ids = [request_ids]
        names = list(requests if request_ids is None else request_ids)
        stopped = [name for name in names if name in requests and self.ended(requests[name])]
        return stopped, [name for name in names if name not in stopped] if stopped else names

    def ended(self, request: Request) -> bool:
        """Tell whether the end of an aborted request's reply has one of its stop strings in it: vLLM lets none pass."""
        params = request.sampling_params
        if params is None or not params.stop or self._tokenizer is None:
            return False
        tokens = request.output_token_ids
        # Until then the server looks for none.
        begin = max(params.min_tokens, len(tokens) - MAX_STOP_TOKENS)
        text = self._tokenizer.decode(tokens[begin:], skip_special_tokens=params.skip_special_tokens)
        return any(stop in text for stop in params.stop)


# Calls stand at a reply's end. More would hold up the engine for longer: vLLM's slowest parsers take 5 ms for 1,000
# tokens. A call that begins before is not found.
MAX_TOKENS = 8192


class ToolReader:
    """Reads replies as the server does: end of turn off, reasoning off, then vLLM's parser `parser_name`.

    The parser is not told which tools were declared: one that accepts declared tools alone (`dots`) finds nothing.
    """

    def __init__(self, vllm_config: VllmConfig, parser_name: str) -> None:
        """Load the parser. Raises InputError when vLLM has no such one, or it cannot work with the tokenizer."""
        known = ToolParserManager.list_registered()
        if parser_name not in known:
            raise InputError(f"runtime.tool_parser: {parser_name} is unknown; choose from {', '.join(known)}")
        self._model = vllm_config.model_config
        self._reported: set[str] = set()
        # Tracker and recorder ask for the same reply, one after the other.
        self._last: tuple[weakref.ref[Request | EndedReply], list[ToolKey]] | None = None
        # Loaded by the core before it makes the scheduler.
        self._tokenizer: Any = cached_tokenizer_from_config(self._model)
        if self._tokenizer is None:
            logger.warning("Tool calls are not read: the engine runs without a tokenizer (skip_tokenizer_init).")
            return
        # As vLLM's detokenizer does: transformers' own way there looks at each token, which takes as long again.
        self._decode_tokens = getattr(self._tokenizer, "backend_tokenizer", self._tokenizer).decode
        self._parser_class = self._find_parser(parser_name, vllm_config.structured_outputs_config.reasoning_parser)
        shorten_parser_errors()

    def read(self, request: Request | EndedReply) -> list[ToolKey]:
        """Read the calls of a finished request's reply, in order; none where the parser cannot make sense of it."""
        if self._tokenizer is None:
            return []
        if self._last is None or self._last[0]() is not request:
            self._last = weakref.ref(request), self._read(request)
        return self._last[1]

    def _read(self, request: Request | EndedReply) -> list[ToolKey]:
        try:
            with reading_again():
                calls = self._parse(*self._decode(request), _ask_as(request))
        except Exception as error:
            self._report(error)
            return []
        return tool_keys((call.name, call.arguments) for call in calls)

    def _find_parser(self, name: str, reasoning_parser: str) -> Any:
        self._is_harmony = self._model.hf_config.model_type == "gpt_oss"
        try:
            return ParserManager.get_parser(
                tool_parser_name=name,
                reasoning_parser_name=reasoning_parser,
                enable_auto_tools=True,
                model_name=self._model.model,
                is_harmony=self._is_harmony,
                tokenizer=self._tokenizer,
            )
        except TypeError as error:
            raise InputError(f"runtime.tool_parser: {in_one_line(error)}; choose the model's own parser") from error

    def _decode(self, request: Request | EndedReply) -> tuple[str, list[int]]:
        """Decode into text and tokens as vLLM's detokenizer hands them to the server's parser."""
        params = request.sampling_params
        assert params is not None
        tokens = request.output_token_ids[-MAX_TOKENS:]
        shown = tokens
        if request.status is RequestStatus.FINISHED_STOPPED and not params.include_stop_str_in_output:
            shown = tokens[:-1]
        # The server has adjusted it to what the parser needs.
        return self._decode_tokens(shown, skip_special_tokens=params.skip_special_tokens), tokens

    def _parse(self, text: str, tokens: list[int], asked: Any) -> list[Any]:
        # A parser keeps state: one a reply.
        parser = self._parser_class(self._tokenizer, None, model_config=self._model)
        _, content, calls = parser.parse(text, asked, enable_auto_tools=True, model_output_token_ids=tokens)
        if calls or content or parser.reasoning_parser is None or self._is_harmony:
            return calls or []
        # All of it was taken for reasoning. That a chat template was told not to reason is known to the server alone.
        found = parser.tool_parser.extract_tool_calls(text, asked)
        return [call.function for call in found.tool_calls]

    def _report(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind not in self._reported:
            self._reported.add(kind)
            logger.warning("Replies that vLLM's tool parser fails on count as without calls: %s: %s", kind, error)


def _ask_as(request: Request | EndedReply) -> Any:
    """Return what a parser looks at of the client's chat request: whether it had to call tools, or a certain one."""
    choice: Any = read_mark(request.sampling_params, TOOL_CHOICE_ARGUMENT)
    if not isinstance(choice, str):
        return _make_request("required" if choice is True else "auto")
    choice = ChatCompletionNamedToolChoiceParam(function=ChatCompletionNamedFunction(name=choice))
    return _make_request("auto").model_copy(update={"tool_choice": choice})


@cache
def _make_request(choice: str) -> Any:
    """Make it once: its sixty defaults take five times as long as reading a reply. Parsers leave it as it is."""
    return ChatCompletionRequest.model_construct(messages=[], tools=None, tool_choice=choice)


def calls_of(request: Request | EndedReply, reader: ToolReader | None) -> list[ToolKey]:
    """Return the tools that a whole reply calls: as dictated with the reply, else read if tools were declared.

    What else the model called has one key for all: the client answers it with an error, and its name may be anything.
    So has all that another engine decodes.
    """
    if is_handed_over(request):
        return [ELSEWHERE]
    if (dictated := find_forced_calls(request.sampling_params)) is not None:
        return read_forced_calls(dictated) or []
    declared = read_mark(request.sampling_params, TOOLS_DECLARED_ARGUMENT)
    if reader is None or not (declared is True or isinstance(declared, list)):
        return []
    calls = reader.read(request)
    if declared is True:
        return calls
    # Most names are their key's.
    if all(call.tool in declared for call in calls):
        return calls
    known = {key_name(name) for name in declared if isinstance(name, str)}
    return [call if call.tool in known else UNDECLARED for call in calls]


def make_reader(vllm_config: VllmConfig, runtime: RuntimeConfig) -> ToolReader | None:
    """Make the reader; None where replies are not to be read, or, with a warning, where no parser is given."""
    obstacle = _find_obstacle(runtime)
    if obstacle is not None:
        logger.warning("Tool calls are not read, so nothing is kept while tools run: %s", obstacle)
    return None if runtime.tool_parser is None else ToolReader(vllm_config, runtime.tool_parser)


def _find_obstacle(runtime: RuntimeConfig) -> str | None:
    """Find why the front end has not told what it has to tell, and what to do."""
    is_said = "tool_parser" in runtime.model_fields_set
    if is_said and runtime.tool_parser is None:
        return None
    if envs.VLLM_PLUGINS is not None and PLUGIN not in envs.VLLM_PLUGINS:
        return f"VLLM_PLUGINS is set and does not name {PLUGIN}; add it."
    if envs.VLLM_USE_RUST_FRONTEND:
        return "vLLM's Rust front end does not tell which tools a request declares; unset VLLM_USE_RUST_FRONTEND."
    if is_said:
        return None
    return (
        "the engine was not started by vLLM's server command; give it the name of the server's tool-call parser, "
        f'as in additional_config={{"{CONFIG_KEY}": {{"runtime": {{"tool_parser": "hermes"}}}}}}, or null.'
    )
