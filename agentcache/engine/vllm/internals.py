"""Lists what we call, override, replace, read or set of vLLM. `compat.py` checks that it is there.

The methods by which vLLM lets others extend it are not here: tests/contract/test_extension_points.py has them. What a
class or a function in the place of one of vLLM's must have, `patches.py` finds there by itself.

What differs between the supported releases, and what we do about it: docs/vllm-versions.md.
"""

from __future__ import annotations

BLOCK = "vllm.v1.core.kv_cache_utils:KVCacheBlock"
POSITION_SLOT = "_block_hash_num_tokens"
GUARDED_PATHS = "vllm.entrypoints.serve.middleware.authenticate:GUARDED_PREFIX"

_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_QUEUE = "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue"
_CLIENT = "vllm.v1.engine.core_client:DPLBAsyncMPClient"
_COPIES = "vllm.v1.simple_kv_offload.cuda_mem_ops"

# What we call or replace, with the leading parameters that we pass or take. By name: the version is looked at first.
SIGNATURES: dict[str, tuple[str, ...]] = {
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
    "vllm.v1.core.block_pool:BlockPool.get_num_free_blocks": ("self",),
    "vllm.v1.core.block_pool:BlockPool.touch": ("self", "blocks"),
    "vllm.v1.core.block_pool:BlockHashToBlockMap.insert": ("self", "key", "block"),
    "vllm.v1.core.block_pool:BlockHashToBlockMap.pop": ("self", "key", "block_id"),
    "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.find_longest_cache_hit": (
        "self",
        "block_hashes",
        "max_cache_hit_length",
    ),
    f"{_MANAGER}.allocate_slots": ("self", "request", "num_new_tokens"),
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
    f"{_SCHEDULER}._drain_deferred_frees": ("self",),
    f"{_SCHEDULER}._free_request": ("self", "request", "delay_free_blocks"),
    f"{_SCHEDULER}._free_request_blocks": ("self", "request"),
    f"{_SCHEDULER}._handle_blocked_waiting_request": ("self", "request"),
    f"{_SCHEDULER}._request_blocks_can_be_freed": ("self", "request"),
    f"{_SCHEDULER}._preempt_request": ("self", "request", "timestamp", "drop_stale_output"),
    f"{_SCHEDULER}.get_request_counts": ("self",),
    f"{_SCHEDULER}.reset_prefix_cache": ("self", "reset_running_requests", "reset_connector"),
    f"{_QUEUE}.get_all_free_blocks": ("self",),
    f"{_QUEUE}.popleft_n": ("self", "n"),
    f"{_QUEUE}.prepend_n": ("self", "blocks"),
    f"{_QUEUE}.remove": ("self", "block"),
    "vllm.engine.arg_utils:EngineArgs.create_engine_config": ("self",),
    "vllm.entrypoints.generate.base.serving:GenerateBaseServing._get_session_id": ("request", "raw_request"),
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": ("self", "request_id", "prompt", "params"),
    "vllm.v1.engine.core:EngineCore.reset_encoder_cache": ("self",),
    "vllm.tokenizers:cached_tokenizer_from_config": ("model_config",),
    # With a CPU cache.
    "vllm.v1.core.block_pool:BlockPool._insert_block_hash": ("self", "block_hash_with_group_id", "block", "num_tokens"),
    f"{_COPIES}:build_params": ("src_caches", "dst_caches", "stream", "src_access_order"),
    f"{_COPIES}:copy_blocks": ("src_block_ids", "dst_block_ids", "params"),
    f"{_COPIES}:pin_tensor": ("tensor",),
    "vllm.utils.cpu_resource_utils:get_cgroup_memory_limit": (),
    # In API servers.
    "vllm.v1.engine.core_client:AsyncMPClient.call_utility_all_async": ("self", "method"),
    f"{_CLIENT}.get_core_engine_for_request": ("self", "request"),
    f"{_CLIENT}.process_engine_outputs": ("self", "outputs"),
    "vllm.entrypoints.serve.utils.api_utils:validate_json_request": ("raw_request",),
    "vllm.entrypoints.serve.middleware.authenticate:AuthenticationMiddleware.verify_token": ("self", "headers"),
}

# Attributes that we read or set, by the class in whose source they stand: no signature tells of them.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vllm.sampling_params:SamplingParams": ("_eos_token_id",),
    "vllm.v1.core.block_pool:BlockHashToBlockMap": ("_cache",),
    "vllm.v1.core.block_pool:BlockPool": ("cached_block_hash_to_block", "free_block_queue", "null_block"),
    BLOCK: ("_block_hash", POSITION_SLOT, "ref_cnt", "is_null"),
    "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator": ("single_type_managers",),
    "vllm.v1.request:Request": ("shared_prefix_boundary",),
    _MANAGER: ("block_pool", "coordinator", "enable_caching", "watermark_blocks"),
    "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager": (
        "block_size",
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
    _CLIENT: ("client_count", "engine_ranks_managed", "reqs_in_flight"),
    "vllm.entrypoints.serve.middleware.authenticate:AuthenticationMiddleware": ("GUARDED_PREFIX",),
    "vllm.v1.engine.async_llm:AsyncLLM": ("tokenizer",),
}

# What has moved: its module by the release that brought it there.
MOVED: dict[str, dict[tuple[int, int], str]] = {
    "cli_env_setup": {(0, 32): "vllm.entrypoints.serve.utils.api_utils", (0, 33): "vllm.entrypoints.common.startup"},
    "get_kv_cache_groups": {(0, 32): "vllm.v1.core.kv_cache_utils", (0, 33): "vllm.v1.core.kv_cache_planning"},
    "make_arg_parser": {(0, 32): "vllm.entrypoints.launchers.cli_args", (0, 33): "vllm.entrypoints.common.cli_args"},
    "validate_parsed_serve_args": {
        (0, 32): "vllm.entrypoints.launchers.cli_args",
        (0, 33): "vllm.entrypoints.common.cli_args",
    },
}
