"""What an object keeps alive, however it is made within: memory stays bounded where this does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def list_kept(root: object, kind: type[Kind]) -> list[Kind]:
    """List the objects of a class that `root` refers to, itself or by what it refers to, each once."""
    return [each for each in _walk(root) if isinstance(each, kind)]


def _walk(root: object) -> Iterator[Any]:
    seen, left = {id(root)}, [root]
    while left:
        each = left.pop()
        if each is not root:
            yield each
        for new in _find_referents(each):
            if id(new) not in seen and not isinstance(new, type | ModuleType):
                seen.add(id(new))
                left.append(new)


def _find_referents(each: Any) -> list[Any]:
    # The globals of a function are no memory of an object's.
    if isinstance(each, FunctionType):
        return list(each.__closure__ or ())
    # Of a dictionary the collector passes over keys that are texts.
    return [*each.keys(), *each.values()] if isinstance(each, dict) else gc.get_referents(each)
