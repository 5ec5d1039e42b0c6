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
        # The globals of a function and the attributes of a class are no memory of an object's.
        found: list[Any] = list(each.__closure__ or ()) if isinstance(each, FunctionType) else gc.get_referents(each)
        for new in found:
            if id(new) not in seen and not isinstance(new, type | ModuleType):
                seen.add(id(new))
                left.append(new)
