"""The type of the fixture `make_stock`, which tests cannot import from a conftest.py: several have that name."""

from __future__ import annotations

from collections.abc import Callable

from lone_scheduler import LoneScheduler

MakeStock = Callable[..., LoneScheduler]
