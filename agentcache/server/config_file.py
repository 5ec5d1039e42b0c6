"""The file that vLLM's `--config` names: what vLLM would end at with a traceback is one line."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from agentcache.errors import InputError, in_one_line

_REMEDY = "write an option of vLLM's and its value a line, as in max-model-len: 8192"


def check_config_file(path: str, own_options: Collection[str]) -> None:
    """Raise InputError for a file that holds no options, or agentcache's own, OSError for one that cannot be read."""
    try:
        # As vLLM opens it.
        options = yaml.safe_load(text := Path(path).read_text())
    except yaml.YAMLError as error:
        raise InputError(f"--config {path}: {_describe(error, text)}; {_REMEDY}") from error
    except ValueError as error:
        # Bytes that are no text, or a day that there is not.
        raise InputError(f"--config {path}: {error}; {_REMEDY}") from error
    if not isinstance(options, dict):
        raise InputError(f"--config {path}: holds no options; {_REMEDY}")
    for name, value in options.items():
        _check_name(path, name, own_options)
        if isinstance(value, dict):
            _check_nested(path, name, value)


def _check_name(path: str, name: object, own_options: Collection[str]) -> None:
    if not isinstance(name, str):
        raise InputError(f"--config {path}: {name!r} is no option's name; {_REMEDY}")
    if name == "config":
        raise InputError(f"--config {path}: {name}: vLLM would not read another file; put its lines into this one")
    if f"--{name}" in own_options:
        raise InputError(f"--config {path}: {name}: the file is for vLLM's options; give --{name} on the command line")


def _check_nested(path: str, name: str, value: object) -> None:
    """Check what vLLM writes as JSON: YAML has values that JSON has not, and may have one within itself."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"--config {path}: {name}: {error}; put what is to be text in quotes") from error


def _describe(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"line {text.count(chr(10), 0, error.position) + 1}: {error.reason}"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return in_one_line(error)
    place = f"line {error.problem_mark.line + 1}: {error.problem}"
    if error.context is None or error.context_mark is None:
        return place
    return f"{place} ({error.context}, line {error.context_mark.line + 1})"
