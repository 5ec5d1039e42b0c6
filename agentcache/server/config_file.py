"""The file that vLLM's `--config` names: what vLLM would end at with a traceback is one line."""

from __future__ import annotations

import json
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from agentcache.errors import InputError, in_one_line

_REMEDY = "write an option of vLLM's and its value a line, as in max-model-len: 8192"


def check_config_file(path: str) -> None:
    """Raise InputError for a file that holds no options, OSError for one that cannot be read."""
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
        if not isinstance(name, str):
            raise InputError(f"--config {path}: {name!r} is no option's name; {_REMEDY}")
        if isinstance(value, dict):
            _check_nested(path, name, value)


def _check_nested(path: str, name: str, value: object) -> None:
    """Check what vLLM writes as JSON: YAML has values that JSON has not."""
    try:
        json.dumps(value)
    except TypeError as error:
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
