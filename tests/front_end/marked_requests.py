"""Marks requests for the tests of a file alone: a server in this process may have wrapped vLLM's classes for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap

import pytest
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.v1.engine.input_processor import InputProcessor

from agentcache.front_end.request_marks import mark_requests


@contextmanager
def marking_requests() -> Iterator[None]:
    was_on = bool(mark_requests.cache_info().currsize)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((GenerateBaseServing, "_get_session_id"), (InputProcessor, "process_inputs")):
            found = unwrap(getattr(owner, name))
            patch.setattr(owner, name, staticmethod(found) if owner is GenerateBaseServing else found)
        mark_requests.cache_clear()
        mark_requests()
        yield
        if not was_on:
            mark_requests.cache_clear()
