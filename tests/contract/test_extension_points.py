"""The methods by which vLLM lets others extend it take what we give them, and ours are called with what vLLM gives."""

from __future__ import annotations

import inspect
import pkgutil

import pytest

SCHEDULER = "vllm.v1.core.sched.interface:SchedulerInterface"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"
# With the leading parameters that we pass or take. What else vLLM may pass, test_overrides.py compares.
METHODS = {
    f"{SCHEDULER}.add_request": ("self", "request"),
    f"{SCHEDULER}.finish_requests": ("self", "request_ids", "finished_status"),
    f"{SCHEDULER}.schedule": ("self", "throttle_prefills"),
    f"{SCHEDULER}.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    f"{CONNECTOR}.build_connector_worker_meta": ("self",),
    f"{CONNECTOR}.get_external_cache_hit_sources": ("self", "request", "num_external_tokens"),
    f"{CONNECTOR}.get_handshake_metadata": ("self",),
    f"{CONNECTOR}.has_pending_push_work": ("self",),
    f"{CONNECTOR}.register_kv_caches": ("self", "kv_caches"),
    f"{CONNECTOR}.reset_cache": ("self",),
    f"{CONNECTOR}.set_xfer_handshake_metadata_pp_aware": ("self", "metadata"),
    f"{CONNECTOR}.update_connector_output": ("self", "connector_output"),
    "vllm.v1.sample.logits_processor:LogitsProcessor.apply": ("self", "logits"),
    "vllm.v1.sample.logits_processor:LogitsProcessor.update_state": ("self", "batch_update"),
    "vllm.engine.arg_utils:EngineArgs.from_cli_args": ("args",),
    "vllm.tool_parsers:ToolParserManager.list_registered": (),
    "vllm.tool_parsers:ToolParser.extract_tool_calls": ("self", "model_output", "request"),
    "vllm.parser:ParserManager.get_parser": (
        "tool_parser_name",
        "reasoning_parser_name",
        "enable_auto_tools",
        "model_name",
        "is_harmony",
        "tool_strict_level",
        "tokenizer",
    ),
    "vllm.parser:Parser.__init__": ("self", "tokenizer", "tools"),
    "vllm.parser:Parser.parse": ("self", "model_output", "request", "enable_auto_tools", "model_output_token_ids"),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_extension_point_is_as_we_use_it_or_a_part_is_mute(name: str) -> None:
    found = tuple(inspect.signature(pkgutil.resolve_name(name)).parameters)
    assert found[: len(METHODS[name])] == METHODS[name]
