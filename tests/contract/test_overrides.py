"""Our classes take all that vLLM may give the methods that they have in place of vLLM's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import Parameter, isfunction, signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.engine import UtilityOutput, core_client
from vllm_internals import answer_call

from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.cached_blocks import WatchedBlockMap
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.cpu_cache.connector import SteeredConnector, TierConnector
from agentcache.engine.order.job_queue import JobQueue
from agentcache.engine.replies.forced_reply import ForcedReplyProcessor
from agentcache.engine.rpc.core_calls import answer_front_ends
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.segments.fill_request import FillingQueue
from agentcache.engine.segments.scheduler import SteeredCacheManager
from agentcache.engine.vllm.compat import check_vllm
from agentcache.engine.vllm.connector import CopyingConnector
from agentcache.front_end.hooks import watch_engine_arguments
from agentcache.front_end.placing_client import PlacingClient, make_placing_clients
from agentcache.front_end.request_marks import mark_requests
from agentcache.sim.quick_pool import QuickCacheManager, QuickPool

OURS = (
    AgentScheduler,
    JobQueue,
    FillingQueue,
    WatchedBlockMap,
    ForcedReplyProcessor,
    TierConnector,
    PlacingClient,
    QuickCacheManager,
    QuickPool,
    SteeredCacheManager,
    SteeredConnector,
)
BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def list_overrides(kind: type) -> Iterator[tuple[str, object, object]]:
    """Each method that one of our classes in `kind` has in place of one of vLLM's."""
    for name in dir(kind):
        owners = [base for base in kind.__mro__ if isfunction(vars(base).get(name))]
        theirs = [base for base in owners if base.__module__.startswith("vllm.")]
        if owners and theirs and owners[0] is not theirs[0] and not name.startswith("__"):
            yield f"{kind.__name__}.{name}", vars(theirs[0])[name], vars(owners[0])[name]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_overrides_take_all_arguments_or_a_call_fails(kind: type) -> None:
    for name, theirs, own in list_overrides(kind):
        given = signature(theirs).parameters.values()  # type: ignore[arg-type]
        places = [each.name for each in given if each.kind in BY_PLACE]
        names = [each.name for each in given if each.kind == Parameter.KEYWORD_ONLY]
        try:
            signature(own).bind(*places, **dict.fromkeys(names))  # type: ignore[arg-type]
        except TypeError as error:
            pytest.fail(f"{name}: {error}")


def test_the_overrides_are_found_or_nothing_is_checked() -> None:
    names = {name for name, _, _ in list_overrides(AgentScheduler)}
    assert {"AgentScheduler.schedule", "AgentScheduler.add_request"} <= names


def test_our_connector_s_methods_are_vllms_or_never_called() -> None:
    own = {name for kind in (CopyingConnector, SteeredConnector) for name in vars(kind) if name[0] != "_"}
    assert {name for name in own if not hasattr(KVConnectorBase_V1, name) and not hasattr(SupportsHMA, name)} == set()


def test_every_replacement_fits_or_a_server_fails() -> None:
    # Each compares what it replaces with vLLM's own, once a process.
    for put_in_place in (
        answer_front_ends,
        mark_requests,
        make_placing_clients,
        watch_engine_arguments,
    ):
        put_in_place()
    check_vllm.cache_clear()
    check_vllm()


def test_clients_are_of_the_module_s_class_or_jobs_leave_home(monkeypatch: pytest.MonkeyPatch) -> None:
    made = object()
    monkeypatch.setattr(core_client, "DPLBAsyncMPClient", lambda *_, **__: made)
    parallel = SimpleNamespace(data_parallel_size=2, data_parallel_external_lb=False)
    config: Any = SimpleNamespace(parallel_config=parallel)
    assert core_client.EngineCoreClient.make_async_mp_client(config, Mock(), log_stats=False) is made


def test_our_free_queue_has_all_methods_or_a_call_fails() -> None:
    theirs = {name for name, value in vars(FreeKVCacheBlockQueue).items() if isfunction(value) and name[0] != "_"}
    assert {name for name in theirs if not hasattr(BlockQueue, name)} == set()


def test_a_scheduler_is_found_by_its_name_or_serve_fails(
    stock_config: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock_config.scheduler_config, "scheduler_cls", SCHEDULER_CLASS)
    assert stock_config.scheduler_config.get_scheduler_cls() is AgentScheduler


def test_a_call_s_failure_is_answered_or_front_ends_wait() -> None:
    answers: list[UtilityOutput] = []

    def fail() -> None:
        raise ValueError("no such job")

    call = partial(answer_call, "agentcache_job")
    call(fail, UtilityOutput(1), answers.append)
    call(lambda: [1], UtilityOutput(2), answers.append)
    assert "no such job" in (answers[0].failure_message or "")
    assert answers[1].result is not None
