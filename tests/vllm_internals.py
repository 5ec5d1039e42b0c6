"""What tests call of vLLM that vLLM names as private: each once, by what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.distributed import parallel_state
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.v1.engine.core import EngineCoreProc


def session_finder() -> Callable[[Any, Any], str | None]:
    """The function, wrapped or not, by which vLLM's handlers find the session of a request that is valid."""
    return GenerateBaseServing._get_session_id


def find_session(request: Any, raw_request: Any = None) -> str | None:
    return session_finder()(request, raw_request)


def find_session_of_tokens(raw_request: Any) -> str | None:
    """As the handler of requests of tokens does, whose bodies name none."""
    return GenerateBaseServing._get_session_id_from_headers(raw_request)


def answer_call(method: str, call: Callable[[], Any], output: Any, answer: Callable[[Any], None]) -> None:
    """As an engine's process answers a utility call."""
    EngineCoreProc._invoke_utility_method(method, call, output, answer)


def finish_pause(core: Any) -> None:
    """As an engine's process does once its scheduler has nothing left."""
    core._finish_pause(clear_cache=True)


def tell_idle(core: Any) -> None:
    """As the loop of an engine's process does."""
    core._notify_idle_state_callbacks()


def keep_shared_groups(client: Any) -> None:
    """Have an engine that goes leave the process's communication groups to the others in it."""
    client._finalizer.detach()


def add_group_of_experts() -> None:
    """vLLM makes a process's groups with its first engine, and that of experts only if this engine has some."""
    if parallel_state.model_parallel_is_initialized() and parallel_state._EP is None:
        parallel_state._EP = parallel_state.get_tp_group()
