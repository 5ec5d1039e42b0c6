"""vLLM's configurations with `--kv-offloading-size`, as on a GPU as well; no engine is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PretrainedConfig
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.front_end import offloading
from agentcache.front_end.hooks import watch_engine_arguments


def act_as_on_gpu(monkeypatch: pytest.MonkeyPatch, shared_memory: str = "/nowhere") -> None:
    """Have the option looked at as on a GPU. What this machine's shared memory has room for counts for nothing."""
    monkeypatch.setattr(offloading, "current_platform", SimpleNamespace(is_cpu=lambda: False, is_rocm=lambda: False))
    monkeypatch.setattr(offloading, "_SHARED_MEMORY", shared_memory)


def save(config: PretrainedConfig, folder: Path) -> str:
    config.save_pretrained(folder)
    return str(folder)


def make_config(model: str, size_gib: float | None, knobs: dict[str, Any] | None = None, **engine: Any) -> VllmConfig:
    watch_engine_arguments()
    return EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=4096,
        scheduler_cls=SCHEDULER_CLASS,
        kv_offloading_size=size_gib,
        additional_config={"agentcache": knobs or {"policy": "agentcache"}},
        **engine,
    ).create_engine_config()
