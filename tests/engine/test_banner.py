"""What a server says of itself at its start, and a policy with the evictor of another."""

from __future__ import annotations

import pytest
from lone_scheduler import make_config, make_scheduler
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentcache._evictor import LruEvictor, ReturnTimeEvictor
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.setup import parts
from agentcache.engine.vllm.compat import find_moved
from agentcache.front_end.plugin import register

NUM_BLOCKS = 40
URL = "http://127.0.0.1:8123/agentcache/report"
SERVER = ("--port", "8123", "--scheduler-cls", SCHEDULER_CLASS)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(parts.logger, "info", lines.append)
    return lines


@pytest.mark.parametrize(
    ("knobs", "banner"),
    [
        (
            {"runtime": {"tool_parser": "hermes"}},
            "agentcache: policy agentcache; tool calls read by hermes; costs estimated from the data sheet of cpu "
            "(agentcache profile measures them); multi-segment reuse on.",
        ),
        ({"policy": "lru"}, "agentcache: policy lru."),
        (
            {"policy": "vllm", "record": {"file": "traffic.jsonl"}},
            "agentcache: policy vllm; requests recorded in traffic.jsonl.",
        ),
        (
            {"policy": "continuum-code", "gpu": "h200", "runtime": {"tool_parser": None}},
            "agentcache: policy continuum-code; tool calls not read: give --tool-call-parser; "
            "costs estimated from the data sheet of h200 (agentcache profile measures them).",
        ),
        (
            {"policy": "asymcache", "evictor": "lru", "segments": {"enabled": False}},
            "agentcache: policy asymcache with the evictor of lru; tool calls not read: give "
            "--tool-call-parser; costs estimated from the data sheet of cpu (agentcache profile measures them).",
        ),
    ],
)
def test_an_engine_says_once_what_it_does(
    tiny_model_path: str, said: list[str], knobs: dict[str, object], banner: str
) -> None:
    make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS, **knobs), NUM_BLOCKS)
    assert said == [banner]


def test_the_banner_says_why_segments_are_not_reused(tiny_model_path: str, said: list[str]) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, {"enable_prefix_caching": False}, policy="asymcache")
    make_scheduler(config, NUM_BLOCKS)
    assert said[0].endswith("; prefix reuse only: prefix caching is off.")


def read_server_config(model: str, *options: str) -> VllmConfig:
    """What `vllm serve --model MODEL OPTIONS` makes of these."""
    register()
    parser = find_moved("make_arg_parser")(FlexibleArgumentParser())
    args = parser.parse_args(["--model", model, "--block-size", "16", *SERVER, *options])
    return AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)


def test_the_banner_ends_with_the_reports_address(
    tiny_model_path: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "agentcache")
    make_scheduler(read_server_config(tiny_model_path), NUM_BLOCKS)
    assert len(said) == 1
    assert said[0].startswith("agentcache: policy agentcache; ")
    assert said[0].endswith(f"; multi-segment reuse on. Live report: {URL}")


@pytest.mark.parametrize(
    ("plugins", "options"),
    [
        (None, ()),
        ("another", ()),
        ("agentcache", ("--additional-config", '{"agentcache": {"policy": "vllm"}}')),
        ("agentcache", ("--runner", "pooling")),
    ],
    ids=["no plug-ins named", "another plug-in", "no jobs followed", "embeddings"],
)
def test_without_a_report_there_is_no_address(
    tiny_model_path: str,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    plugins: str | None,
    options: tuple[str, ...],
) -> None:
    if plugins is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    make_scheduler(read_server_config(tiny_model_path, *options), NUM_BLOCKS)
    assert len(said) == 1
    assert "http" not in said[0]


def test_an_address_leaves_the_configuration_as_it_is(tiny_model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "agentcache")
    config = read_server_config(tiny_model_path)
    # Compiled code is kept by this key, with any port.
    assert config.compute_hash() == read_server_config(tiny_model_path, "--port", "8124").compute_hash()
    # As vLLM does for models with an encoder. It copies no attribute that it does not know.
    assert config.with_hf_config(config.model_config.hf_config).model_config.model == tiny_model_path


def test_another_engine_of_the_process_has_no_address(
    tiny_model_path: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "agentcache")
    read_server_config(tiny_model_path)
    make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS), NUM_BLOCKS)
    assert "http" not in said[0]


@pytest.mark.parametrize(
    ("engine", "speaks"),
    [
        ({"data_parallel_index": 0}, True),
        ({"data_parallel_index": 1, "data_parallel_rank_local": 1}, False),
        # The first engine of another host, whose server is elsewhere.
        ({"data_parallel_index": 2, "data_parallel_rank_local": 0}, False),
        # A server on each host, and one for each engine.
        ({"data_parallel_index": 2, "data_parallel_rank_local": 0, "data_parallel_hybrid_lb": True}, True),
        ({"data_parallel_index": 3, "data_parallel_rank_local": 1, "data_parallel_hybrid_lb": True}, False),
        ({"data_parallel_index": 1, "data_parallel_rank_local": 1, "data_parallel_external_lb": True}, True),
    ],
)
def test_one_engine_speaks_for_each_server(
    tiny_model_path: str, said: list[str], engine: dict[str, object], speaks: bool
) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy="lru")
    for name, value in engine.items():
        setattr(config.parallel_config, name, value)
    make_scheduler(config, NUM_BLOCKS)
    assert said == ["agentcache: policy lru."] * speaks


@pytest.mark.parametrize(("knobs", "kind"), [({}, ReturnTimeEvictor), ({"evictor": "lru"}, LruEvictor)])
def test_an_ablation_changes_the_evictor_alone(
    tiny_model_path: str, knobs: dict[str, object], kind: type[object]
) -> None:
    runtime = {"tool_parser": "hermes"}
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy="agentcache", runtime=runtime, **knobs)
    scheduler = make_scheduler(config, NUM_BLOCKS)
    assert isinstance(scheduler.evictor.inner, kind)
    assert scheduler.tracker is not None
    assert scheduler.gap_filler is not None
