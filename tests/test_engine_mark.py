"""`make test-fast` starts no engine, as every engine checks that starts without the mark."""

from __future__ import annotations

import os

import pytest
from live_engine import LiveEngine


def test_an_engine_of_a_test_without_the_mark_fails(tiny_model_path: str) -> None:
    with pytest.raises(AssertionError, match="the test lacks the mark engine"):
        LiveEngine(tiny_model_path)


@pytest.mark.engine
def test_with_the_mark_vllm_binds_no_threads() -> None:
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
