"""What we rely on in vLLM, checked once at start so that a changed internal is one clear line and not a crash later."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import vllm
from packaging.version import Version
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.logits_processor import LogitsProcessor

from agentcache.errors import CompatibilityError

SUPPORTED_RELEASE = (0, 32)

# What we call or replace, with the leading parameters that we pass or take.
_SIGNATURES: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (AsyncScheduler.__init__, ("self", "args", "kwargs")),
    (BlockPool.free_blocks, ("self", "ordered_blocks")),
    (BlockPool.get_new_blocks, ("self", "num_blocks")),
    (BlockPool.touch, ("self", "blocks")),
    (FreeKVCacheBlockQueue.append, ("self", "block")),
    (FreeKVCacheBlockQueue.append_n, ("self", "blocks")),
    (FreeKVCacheBlockQueue.get_all_free_blocks, ("self",)),
    (FreeKVCacheBlockQueue.iter_blocks_after, ("self", "cursor")),
    (FreeKVCacheBlockQueue.popleft, ("self",)),
    (FreeKVCacheBlockQueue.popleft_n, ("self", "n")),
    (FreeKVCacheBlockQueue.prepend_n, ("self", "blocks")),
    (FreeKVCacheBlockQueue.remove, ("self", "block")),
    (InputProcessor.process_inputs, ("self", "request_id", "prompt", "params")),
    (LogitsProcessor.apply, ("self", "logits")),
    (LogitsProcessor.update_state, ("self", "batch_update")),
)


@cache
def check_vllm() -> None:
    """Raises CompatibilityError, naming what differs, when the plug-in does not fit the installed vLLM."""
    release = Version(vllm.__version__).release
    if release[:2] != SUPPORTED_RELEASE:
        wanted = ".".join(map(str, SUPPORTED_RELEASE))
        raise CompatibilityError(f"vLLM {vllm.__version__} is installed; agentcache needs {wanted}.x")
    for function, expected in _SIGNATURES:
        check_signature(function, expected)
    methods = {name for name, _ in inspect.getmembers(FreeKVCacheBlockQueue, inspect.isfunction) if name[0] != "_"}
    unknown = methods - {function.__name__ for function, _ in _SIGNATURES}
    if unknown:
        raise CompatibilityError(f"vLLM {vllm.__version__}: its free block queue has new methods: {sorted(unknown)}")


def check_signature(function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    """Raises CompatibilityError when the function's leading parameters are not the expected ones."""
    found = tuple(inspect.signature(function).parameters)
    if found[: len(expected)] != expected:
        raise CompatibilityError(
            f"vLLM {vllm.__version__}: {function.__qualname__} takes ({', '.join(found)}), "
            f"agentcache expects ({', '.join(expected)}, ...)"
        )
