"""Everything that agentcache replaces in vLLM, each with its reason. No other module assigns to vLLM's attributes.

Methods that our scheduler overrides are not here: they are `VllmScheduler`, `MultiSegmentScheduler` and
`AgentScheduler`. What is taken for granted of all of them is in `internals.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, getattr_static, getmembers, isclass, ismodule, isroutine, signature
from typing import Any

import vllm

from agentcache.errors import CompatibilityError

# "Class.attribute" or "module.Class" of vLLM's: why it is replaced.
REPLACED = {
    # In the engine core, of one scheduler's objects.
    "BlockPool.free_block_queue": "an evictor chooses the victims",
    "BlockPool.cached_block_hash_to_block": "waiting requests are told which of their blocks come and go",
    "BlockPool.__class__": "simulations do the same with fewer calls",
    "KVCacheManager.__class__": "requests that lack room get held blocks first; filled gaps count as computed",
    "KVCacheCoordinator.remove_skipped_blocks": "windows and states that a request has left behind go first",
    # In processes that take requests, once their engine names agentcache.
    "EngineArgs.from_cli_args": "the engine learns the server's tool-call parser",
    "EngineArgs.create_engine_config": "engines that name agentcache get the rest of this list",
    "GenerateBaseServing._get_session_id": "requests get marks for the engine, and clients name sessions in more ways",
    "InputProcessor.process_inputs": "the engine gets the marks; clients may force a reply, and send no marks",
    "core_client.DPLBAsyncMPClient": "a job's requests go to the engine that has its KV",
    "AsyncLLM.shutdown": "requests under way end first, also where several API servers share the engines",
}
# What is added to the engine core for front ends to call has names of our own.
ADDED_PREFIX = "agentcache_"
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def replace(owner: object, name: str, value: object) -> None:
    """Set an attribute of one of vLLM's classes, objects or modules.

    Raises:
        CompatibilityError: `REPLACED` has no reason for it; or a function of vLLM's, or a public method of what is
            replaced, takes arguments that ours does not, or is none of ours: vLLM may call it with them.
    """
    kind = owner if isinstance(owner, type) else type(owner)
    owners = [owner.__name__.rpartition(".")[2]] if ismodule(owner) else [base.__name__ for base in kind.__mro__]
    if not any(f"{each}.{name}" in REPLACED for each in owners) and not name.startswith(ADDED_PREFIX):
        raise CompatibilityError(
            f"{owners[0]}.{name} is replaced without a reason in agentcache/engine/vllm/patches.py"
        )
    original = getattr(owner, name, None)
    if isroutine(original) and isroutine(value):
        own = value.__get__(None, kind) if isinstance(value, classmethod | staticmethod) else value
        _check_arguments(f"{owners[0]}.{name}", original, own)
    else:
        _check_methods(original, value)
    setattr(owner, name, value)


def _check_methods(original: object, replacement: object) -> None:
    """Compare the public methods of a class of vLLM's, or of an object, with those of what takes its place."""
    kind = original if isclass(original) else type(original)
    for name, method in getmembers(original, isroutine):
        if name[0] != "_" and kind.__module__.startswith("vllm."):
            if (own := getattr(replacement, name, None)) is None:
                raise CompatibilityError(f"vLLM {vllm.__version__}: {kind.__name__}.{name} is new, agentcache has none")
            _check_arguments(f"{kind.__name__}.{name}", method, own)


def _check_arguments(name: str, original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Call the replacement's signature with all that vLLM's own function takes."""
    parameters = signature(original).parameters.values()
    by_place = [each.name for each in parameters if each.kind in _BY_PLACE]
    by_name = [each.name for each in parameters if each.kind == Parameter.KEYWORD_ONLY]
    try:
        # A wrapper has the signature of what it wraps, and takes what it says itself.
        own = signature(replacement, follow_wrapped=False)
    except ValueError:
        return  # Python does not know what a compiled one takes: `internals.py` has what we count on.
    try:
        own.bind(*by_place, **dict.fromkeys(by_name))
    except TypeError as error:
        taken = ", ".join(by_place + by_name)
        raise CompatibilityError(
            f"vLLM {vllm.__version__}: {name} takes ({taken}), agentcache's does not: {error}"
        ) from None


def wrap_method(owner: type, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Put `make(original)` in the place of a class's method."""
    original = getattr(owner, name)
    made = wraps(original)(make(original))
    is_static = isinstance(getattr_static(owner, name), staticmethod)
    replace(owner, name, staticmethod(made) if is_static else made)
