"""Reads knobs, from vLLM's `additional_config` and as they are typed, and says which of them cannot be and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from agentcache.closest_name import suggest
from agentcache.config import AgentCacheConfig, iterate_knobs
from agentcache.errors import InputError

CONFIG_KEY = "agentcache"
# What stands before a knob's name in a message on vLLM's configuration.
PLACE = f"additional_config: {CONFIG_KEY}."


def read_config(additional_config: object) -> AgentCacheConfig:
    """Read the plug-in's part of vLLM's `additional_config`; defaults when it is absent. Raises InputError."""
    ours = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    return _read(ours, PLACE)


def _read(ours: object, place: str) -> AgentCacheConfig:
    """Read the plug-in's fields; `place` is what stands before a field's name where the user has typed it."""
    try:
        return AgentCacheConfig.model_validate(ours)
    except ValidationError as error:
        first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    field = f"{place}{name}" if name else place.rstrip(".")
    raise InputError(f"{field}: {_say_why(name, first['type'], first['msg'])}")


def _say_why(name: str, kind: str, message: str) -> str:
    """Say why the field cannot be, `kind` and `message` being pydantic's, whose words suit values alone."""
    knobs = dict(iterate_knobs(AgentCacheConfig))
    if kind == "extra_forbidden":
        return f"no such knob{suggest(name, knobs)}"
    if group := [knob for knob in knobs if name and knob.startswith(f"{name}.")]:
        return f"is a group of knobs; give one of {', '.join(group)}"
    return message.removeprefix("Value error, ")


def read_knobs(pairs: Sequence[str]) -> dict[str, Any]:
    """Read knobs as typed behind --agentcache, such as `["segments.enabled=false"]`, into the config's nested fields.

    Raises InputError for what no config can be made of.
    """
    knobs: dict[str, Any] = {}
    for pair in pairs:
        path, separator, text = pair.partition("=")
        if not separator:
            raise InputError(f"--agentcache {pair}: give NAME=VALUE, as in segments.enabled=false")
        *parents, name = path.split(".")
        place = knobs
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"--agentcache {pair}: {parent} is given a value of its own as well; leave one out")
        place[name] = _read_value(text)
    _read(knobs, "--agentcache ")
    return knobs


def list_knobs(knobs: Mapping[str, Any]) -> dict[str, str | int | float | bool | None]:
    """List the same knobs by their dotted names, as a run's record shows them."""
    listed: dict[str, str | int | float | bool | None] = {}
    for name, value in knobs.items():
        inner = list_knobs(value) if isinstance(value, Mapping) else {"": value}
        listed |= {f"{name}.{rest}".removesuffix("."): each for rest, each in inner.items()}
    return listed


def _read_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
