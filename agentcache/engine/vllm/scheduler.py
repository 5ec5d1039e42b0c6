"""vLLM's scheduler, asynchronous where vLLM is: one class, because `scheduler_cls` names one before that is decided."""

from __future__ import annotations

from functools import cache
from typing import Any, Self

from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.types import AsyncScheduler, Scheduler


class VllmScheduler(Scheduler):
    """The scheduler that vLLM itself would take: its `AsyncScheduler` where scheduling is asynchronous.

    An asynchronous scheduler counts on tokens before they are sampled. Under pipeline parallelism without asynchronous
    scheduling the next batch would then hold requests whose last token is not known yet.
    """

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004 (those of `__init__`)
        """Make one of the class, or of the class with vLLM's asynchronous scheduler behind it."""
        is_async = vllm_config.scheduler_config.async_scheduling and not issubclass(cls, AsyncScheduler)
        made: Self = super().__new__(_make_asynchronous(cls) if is_async else cls)
        return made


@cache
def _make_asynchronous(kind: type[VllmScheduler]) -> Any:
    """Put vLLM's asynchronous scheduler between ours and its base class."""
    return type(kind.__name__, (kind, AsyncScheduler), {"__module__": kind.__module__})
