"""A middleware for `vllm serve --middleware`: a server imports each module of ours from where it was installed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Iterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PATH = "/import-all"


async def import_all(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Takes names of packages and gives the file of each module in them."""
    if request.url.path != PATH:
        return await call_next(request)
    return JSONResponse(dict(_import(await request.json())))


def _import(packages: list[str]) -> Iterator[tuple[str, str | None]]:
    for package in map(importlib.import_module, packages):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                yield module.name, importlib.import_module(module.name).__file__
