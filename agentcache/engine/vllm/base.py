"""vLLM's helpers that any of its processes has: log, environment, platform, errors, configuration."""

from __future__ import annotations

from vllm import envs
from vllm.config import KVTransferConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.envs import disable_envs_cache
from vllm.exceptions import VLLMValidationError
from vllm.logger import configure_logging_from_args, init_logger
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.cpu_resource_utils import get_cgroup_memory_limit
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.utils.math_utils import cdiv
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE, get_kv_cache_torch_dtype
