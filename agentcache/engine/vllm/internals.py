"""Lists what we call, replace, read or set of vLLM. `compat.py` checks that it is there.

What differs between the supported releases, and what we do about it: docs/vllm-versions.md.
"""

from __future__ import annotations

from itertools import chain

BLOCK = "vllm.v1.core.kv_cache_utils:KVCacheBlock"
POSITION_SLOT = "_block_hash_num_tokens"
QUEUE = "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue"

ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
# Where it differs from `Scheduler`: `scheduler.py` has the choice in each of them.
ASYNC_METHODS = {"__init__", "_update_after_schedule", "_update_request_with_output"}

_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"
_COPIES = "vllm.v1.simple_kv_offload.cuda_mem_ops"

# What we call or replace, with the leading parameters that we pass or take. By name: the version is looked at first.
SIGNATURES: dict[str, tuple[str, ...]] = {
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler.__init__": ("self", "args", "kwargs"),
    "vllm.v1.core.block_pool:BlockPool._emit_block_removed_events": ("self", "block_hashes"),
    "vllm.v1.core.block_pool:BlockPool._maybe_evict_cached_block": ("self", "block"),
    "vllm.v1.core.block_pool:BlockPool.cache_full_blocks": (
        "self",
        "request",
        "blocks",
        "num_cached_blocks",
        "num_full_blocks",
        "block_size",
        "kv_cache_group_id",
        "block_mask",
    ),
    "vllm.v1.core.block_pool:BlockPool.free_blocks": ("self", "ordered_blocks"),
    "vllm.v1.core.block_pool:BlockPool.get_new_blocks": ("self", "num_blocks"),
    "vllm.v1.core.block_pool:BlockPool.evict_blocks": ("self", "block_ids"),
    "vllm.v1.core.block_pool:BlockPool.get_cached_block": ("self", "block_hash", "kv_cache_group_ids"),
    "vllm.v1.core.block_pool:BlockPool.get_num_free_blocks": ("self",),
    "vllm.v1.core.block_pool:BlockPool.touch": ("self", "blocks"),
    "vllm.v1.core.block_pool:BlockHashToBlockMap.get_one_block": ("self", "key"),
    "vllm.v1.core.block_pool:BlockHashToBlockMap.insert": ("self", "key", "block"),
    "vllm.v1.core.block_pool:BlockHashToBlockMap.pop": ("self", "key", "block_id"),
    "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.find_longest_cache_hit": (
        "self",
        "block_hashes",
        "max_cache_hit_length",
    ),
    f"{_CONNECTOR}.get_external_cache_hit_sources": ("self", "request", "num_external_tokens"),
    f"{_MANAGER}.allocate_slots": ("self", "request", "num_new_tokens"),
    f"{_MANAGER}.evict_blocks": ("self", "block_ids"),
    f"{_MANAGER}.get_computed_blocks": ("self", "request"),
    f"{_MANAGER}.get_blocks": ("self", "request_id"),
    f"{_MANAGER}.record_prefix_cache_stats": ("self", "request", "num_hits"),
    f"{_SCHEDULER}.__init__": (
        "self",
        "vllm_config",
        "kv_cache_config",
        "structured_output_manager",
        "block_size",
        "hash_block_size",
    ),
    f"{_SCHEDULER}.add_request": ("self", "request"),
    f"{_SCHEDULER}._drain_deferred_frees": ("self",),
    f"{_SCHEDULER}._free_request": ("self", "request", "delay_free_blocks"),
    f"{_SCHEDULER}._free_request_blocks": ("self", "request"),
    f"{_SCHEDULER}._handle_blocked_waiting_request": ("self", "request"),
    f"{_SCHEDULER}._request_blocks_can_be_freed": ("self", "request"),
    f"{_SCHEDULER}._preempt_request": ("self", "request", "timestamp", "drop_stale_output"),
    f"{_SCHEDULER}.get_request_counts": ("self",),
    f"{_SCHEDULER}.finish_requests": ("self", "request_ids", "finished_status"),
    f"{_SCHEDULER}.reset_prefix_cache": ("self", "reset_running_requests", "reset_connector"),
    f"{_SCHEDULER}.schedule": ("self", "throttle_prefills"),
    f"{_SCHEDULER}._update_after_schedule": ("self", "scheduler_output"),
    f"{_SCHEDULER}._update_request_with_output": ("self", "request", "new_token_ids", "is_stale"),
    f"{_SCHEDULER}.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    f"{QUEUE}.append": ("self", "block"),
    f"{QUEUE}.append_n": ("self", "blocks"),
    f"{QUEUE}.get_all_free_blocks": ("self",),
    f"{QUEUE}.iter_blocks_after": ("self", "cursor"),
    f"{QUEUE}.popleft": ("self",),
    f"{QUEUE}.popleft_n": ("self", "n"),
    f"{QUEUE}.prepend_n": ("self", "blocks"),
    f"{QUEUE}.remove": ("self", "block"),
    "vllm.engine.arg_utils:EngineArgs.from_cli_args": ("args",),
    "vllm.engine.arg_utils:EngineArgs.create_engine_config": ("self",),
    "vllm.entrypoints.generate.base.serving:GenerateBaseServing._get_session_id": ("request", "raw_request"),
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": ("self", "request_id", "prompt", "params"),
    # The core calls the method that a front end names in a message.
    "vllm.v1.engine.core:EngineCore.reset_encoder_cache": ("self",),
    "vllm.v1.engine.core:EngineCoreProc._notify_idle_state_callbacks": ("self",),
    "vllm.v1.engine.core:EngineCoreProc._invoke_utility_method": ("name", "get_result", "output", "enqueue_output"),
    "vllm.v1.sample.logits_processor:LogitsProcessor.apply": ("self", "logits"),
    "vllm.v1.sample.logits_processor:LogitsProcessor.update_state": ("self", "batch_update"),
}

# Attributes that we read or set, by the class in whose source they stand: no signature tells of them.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vllm.sampling_params:SamplingParams": ("_eos_token_id",),
    "vllm.v1.core.block_pool:BlockHashToBlockMap": ("_cache",),
    "vllm.v1.core.block_pool:BlockPool": (
        "_reuse_watchers",
        "cached_block_hash_to_block",
        "cached_block_hashes_by_block",
        "free_block_queue",
        "metrics_collector",
        "null_block",
    ),
    "vllm.v1.core.kv_cache_utils:KVCacheBlock": ("_block_hash", "ref_cnt", "is_null"),
    "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator": ("single_type_managers",),
    "vllm.v1.request:Request": ("shared_prefix_boundary",),
    _MANAGER: ("block_pool", "coordinator", "enable_caching", "watermark_blocks"),
    "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager": (
        "block_size",
        "_partial_hit_reqs",
        "max_admission_blocks_per_request",
        "num_cached_block",
        "req_to_blocks",
    ),
    _SCHEDULER: (
        "connector",
        "deferred_frees",
        "finished_req_ids_dict",
        "max_num_scheduled_tokens",
        "processed_step_seq",
        "requests",
        "running",
        "waiting",
    ),
    "vllm.v1.engine.core:EngineCoreProc": ("_idle_state_callbacks",),
}

# The same for API servers only.
SERVER_SIGNATURES: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.core_client:AsyncMPClient.call_utility_all_async": ("self", "method"),
    "vllm.v1.engine.core_client:AsyncMPClient._call_utility_async": ("self", "method", "args", "engine"),
    "vllm.v1.engine.core_client:DPLBAsyncMPClient.get_core_engine_for_request": ("self", "request"),
    "vllm.v1.engine.core_client:DPLBAsyncMPClient.process_engine_outputs": ("self", "outputs"),
    "vllm.entrypoints.serve.utils.api_utils:validate_json_request": ("raw_request",),
    "vllm.entrypoints.serve.middleware.authenticate:AuthenticationMiddleware.verify_token": ("self", "headers"),
}

# The same for engine cores that read tool calls.
PARSER_SIGNATURES: dict[str, tuple[str, ...]] = {
    "vllm.tokenizers:cached_tokenizer_from_config": ("model_config",),
    "vllm.tool_parsers:ToolParserManager.list_registered": (),
    "vllm.tool_parsers:ToolParser.extract_tool_calls": ("self", "model_output", "request"),
    "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionNamedToolChoiceParam.__init__": ("self",),
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
    "vllm.v1.request:Request.get_finished_reason": ("self",),
}
# The same for engines with a CPU cache. Of a connector what vLLM would leave out without a word.
TIER_SIGNATURES: dict[str, tuple[str, ...]] = {
    "vllm.v1.core.block_pool:BlockPool._insert_block_hash": ("self", "block_hash_with_group_id", "block", "num_tokens"),
    f"{_CONNECTOR}.register_kv_caches": ("self", "kv_caches"),
    f"{_CONNECTOR}.build_connector_worker_meta": ("self",),
    f"{_CONNECTOR}.update_connector_output": ("self", "connector_output"),
    f"{_CONNECTOR}.has_pending_push_work": ("self",),
    f"{_CONNECTOR}.reset_cache": ("self",),
    f"{_CONNECTOR}.get_handshake_metadata": ("self",),
    f"{_CONNECTOR}.set_xfer_handshake_metadata_pp_aware": ("self", "metadata"),
    f"{_COPIES}:build_params": ("src_caches", "dst_caches", "stream", "src_access_order"),
    f"{_COPIES}:copy_blocks": ("src_block_ids", "dst_block_ids", "params"),
    f"{_COPIES}:pin_tensor": ("tensor",),
    "vllm.utils.cpu_resource_utils:get_cgroup_memory_limit": (),
}
SERVER_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.core_client:DPLBAsyncMPClient": ("client_count", "core_engines", "reqs_in_flight"),
    "vllm.v1.engine.async_llm:AsyncLLM": ("tokenizer",),
}
# What has moved: its module by the release that brought it there.
MOVED: dict[str, dict[tuple[int, int], str]] = {
    "cli_env_setup": {
        (0, 32): "vllm.entrypoints.serve.utils.api_utils",
        (0, 33): "vllm.entrypoints.common.startup",
    },
    "get_kv_cache_groups": {
        (0, 32): "vllm.v1.core.kv_cache_utils",
        (0, 33): "vllm.v1.core.kv_cache_planning",
    },
    "make_arg_parser": {
        (0, 32): "vllm.entrypoints.launchers.cli_args",
        (0, 33): "vllm.entrypoints.common.cli_args",
    },
    "validate_parsed_serve_args": {
        (0, 32): "vllm.entrypoints.launchers.cli_args",
        (0, 33): "vllm.entrypoints.common.cli_args",
    },
}
GUARDED_PATHS = "vllm.entrypoints.serve.middleware.authenticate:GUARDED_PREFIX"


def private_names() -> set[str]:
    """Collect every private attribute and method of vLLM's that agentcache uses."""
    signatures = (*SIGNATURES, *SERVER_SIGNATURES, *PARSER_SIGNATURES, *TIER_SIGNATURES)
    methods = (name.rpartition(".")[2] for name in signatures)
    names = {POSITION_SLOT, *methods, *chain.from_iterable(ATTRIBUTES.values())}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}
