"""Finds for what the user types as MODEL a folder, or a model on the hub, that vLLM can load, and its options."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import InputError
from agentcache.models.published import read_shape
from agentcache.models.shapes import SHAPES, SMALL, Shape

SHAPE_PREFIX = "shape:"
# How no name on a hub begins.
_OF_PATHS = ("/", "./", "../", "~")
# vLLM takes no chat template and no tool-call parser for them but its own.
_WITH_OWN_CHAT = ("gpt_oss",)
_HERMES = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
# The CPU backend reserves most of the memory by default; this is a quarter of a million tokens or more. Two
# layers gain nothing from compilation, which would take longer than most runs.
_SMALL_OPTIONS = ("--dtype", "float32", "--kv-cache-memory-bytes", str(2**30), "--enforce-eager")
# What decides the bytes of a model: the code that makes it, and these.
_TOOLS = ("tokenizers", "transformers", "torch")


@dataclass(frozen=True, slots=True)
class Model:
    """`path` is a folder or a hub name; `options` are vLLM's, as on its command line."""

    path: str
    options: tuple[str, ...] = ()


def is_made_here(name: str) -> bool:
    """Tell whether the name stands for a model with random weights that the project makes."""
    return name in SMALL or name.startswith(SHAPE_PREFIX)


def short_name(name: str) -> str:
    """Return what profiles call the model: the shape's name, the folder's last part, or the hub's name."""
    short = name.removeprefix(SHAPE_PREFIX)
    return Path(short).absolute().name if Path(short).is_dir() else short


def check_model(name: str) -> None:
    """Raise InputError for an unknown shape, or a folder that is missing or without a config. Loads nothing."""
    shape = name.removeprefix(SHAPE_PREFIX)
    if name.startswith(SHAPE_PREFIX) and shape not in SHAPES:
        raise InputError(f"model {name}: unknown shape; choose from {', '.join(SHAPE_PREFIX + s for s in SHAPES)}")
    if name.startswith(_OF_PATHS) and not Path(name).exists():
        raise InputError(f"model {name}: there is no such folder; give the folder that holds the model's files")
    if (folder := Path(name)).is_dir() and not is_made_here(name) and not (folder / "config.json").is_file():
        raise InputError(f"model {name}: the folder has no config.json; give the folder that holds the model's files")


def check_servable(name: str) -> None:
    """Raise InputError for what `check_model` refuses, and for a shape whose chats only its own tokenizer can write."""
    check_model(name)
    shape = SHAPES.get(name.removeprefix(SHAPE_PREFIX)) if name.startswith(SHAPE_PREFIX) else None
    if shape is not None and shape.model_type in _WITH_OWN_CHAT:
        raise InputError(
            f"model {name}: vLLM writes its chats by Harmony, which needs the model's own tokenizer, "
            "so it can be simulated but not served; serve the published model"
        )


def resolve_model(name: str) -> Model:
    """Make the model if it is one of ours. Raises InputError as `check_model`, or when it cannot be written."""
    check_model(name)
    if name in SMALL:
        folder = _make_once(name, SMALL[name], _write_weights)
        return Model(str(folder), ("--served-model-name", name, *_SMALL_OPTIONS, *_HERMES))
    if name.startswith(SHAPE_PREFIX):
        shape = name.removeprefix(SHAPE_PREFIX)
        folder = _make_once(shape, SHAPES[shape], None)
        options = ("--served-model-name", name, "--load-format", "dummy", *SHAPES[shape].options)
        return Model(str(folder), (*options, *_HERMES))
    return Model(name)


def make_text_model(model: str) -> str:
    """Make a folder with a published model's text config and our tokenizer: all that tokens without text need.

    Raises InputError as `read_shape`, or when it cannot be written.
    """
    return str(_make_once("text-" + re.sub(r"[^A-Za-z0-9.-]+", "-", short_name(model)), read_shape(model), None))


def _make_once(name: str, shape: Shape, write_weights: Callable[[Path], None] | None) -> Path:
    """Make the model's folder in the cache on first use and return it; safe when several processes do so at once."""
    folder = _cache_folder() / f"{name}-{_hash_recipe(shape)}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    except OSError as error:
        raise InputError(
            f"model {name}: it is made once, and {folder.parent} cannot be written ({error.strerror}); "
            "name another folder in AGENTCACHE_HOME"
        ) from error
    try:
        _write_config(draft, shape)
        if write_weights is not None:
            write_weights(draft)
        draft.rename(folder)
    except OSError:
        # Another process was first: its folder has the same content.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _cache_folder() -> Path:
    if home := os.environ.get("AGENTCACHE_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentcache" / "models"


def _hash_recipe(shape: Shape) -> str:
    """Hash anything that the model is made of, so that no stale folder is ever used."""
    sources = sorted(path for path in Path(__file__).parent.iterdir() if path.is_file())
    versions = [platform.python_version(), *map(importlib.metadata.version, _TOOLS)]
    recipe = hashlib.sha256(f"{shape} {versions}".encode())
    for path in sources:
        recipe.update(path.read_bytes())
    return recipe.hexdigest()[:12]


def _write_config(folder: Path, shape: Shape) -> None:
    from transformers import AutoConfig

    from agentcache.models.tokenizer import train_tokenizer

    tokenizer = train_tokenizer()
    tokenizer.model_max_length = shape.max_tokens
    tokenizer.save_pretrained(folder)
    dtype = "float32" if shape in SMALL.values() else "bfloat16"
    fields = shape.as_config(end_of_turn=tokenizer.eos_token_id, padding=tokenizer.pad_token_id, dtype=dtype)
    AutoConfig.for_model(shape.model_type, **fields).save_pretrained(folder)


def _write_weights(folder: Path) -> None:
    """Write seeded random weights, wide enough that the output depends on the whole context."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_pretrained(folder, initializer_range=0.3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
