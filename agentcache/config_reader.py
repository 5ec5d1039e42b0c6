"""Reads knobs, from vLLM's `additional_config` and as they are typed, and says which of them cannot be and why."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from agentcache.config import AgentCacheConfig, iterate_constants, iterate_knobs
from agentcache.errors import InputError, suggest

CONFIG_KEY = "agentcache"
# What stands before a knob's name in a message on vLLM's configuration.
PLACE = f"additional_config: {CONFIG_KEY}."
# The same where knobs are typed.
_TYPED = "--agentcache "


def read_config(additional_config: object) -> AgentCacheConfig:
    """Read the plug-in's part of vLLM's `additional_config`; defaults when it is absent. Raises InputError."""
    ours = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    return _check(ours, PLACE)


def _check(ours: object, place: str) -> AgentCacheConfig:
    """Check the plug-in's fields; `place` is what stands before a field's name where the user has typed it."""
    try:
        return AgentCacheConfig.model_validate(ours)
    except ValidationError as error:
        first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    field = f"{place}{name}" if name else place.rstrip(".")
    raise InputError(f"{field}: {_say_why(name, first['type'], first['msg'])}")


def _say_why(name: str, kind: str, message: str) -> str:
    """Say why the field cannot be, `kind` and `message` being pydantic's, whose words suit values alone."""
    knobs = dict((*iterate_knobs(AgentCacheConfig), *iterate_constants()))
    if kind == "extra_forbidden":
        return f"no such knob{_suggest_knob(name, knobs)}"
    if group := [knob for knob in knobs if name and knob.startswith(f"{name}.")]:
        return f"is a group of knobs; give one of {', '.join(group)}"
    return message.removeprefix("Value error, ")


def _suggest_knob(name: str, knobs: Collection[str]) -> str:
    """Suggest the one knob that has this name in another group, else the closest."""
    alike = [knob for knob in knobs if knob.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"; did you mean {alike[0]}?" if len(alike) == 1 else suggest(name, knobs)


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
        place[name] = _read_value(text, f"{_TYPED}{path}")
    _check(knobs, _TYPED)
    return knobs


def list_knobs(knobs: Mapping[str, Any]) -> dict[str, str | int | float | bool | None]:
    """List the same knobs by their dotted names, as a run's record shows them."""
    listed: dict[str, str | int | float | bool | None] = {}
    for name, value in knobs.items():
        inner = list_knobs(value) if isinstance(value, Mapping) else {"": value}
        listed |= {f"{name}.{rest}".removesuffix("."): each for rest, each in inner.items()}
    return listed


def _read_value(text: str, place: str) -> object:
    def read_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields: dict[str, object] = {}
        for name, value in pairs:
            if name in fields:
                raise InputError(f"{place}: {name} is given twice; leave one out")
            fields[name] = value
        return fields

    try:
        return json.loads(text, object_pairs_hook=read_once)
    except ValueError:
        return text


def describe_knobs(name: str | None) -> Iterator[str]:
    """Describe the knobs, one text each; those of a group for "pins", and one for "pins.budget".

    Constants are described only where they are asked for, by "tuning" or the name of one. Raises InputError for a name
    that none has.
    """
    knobs = dict(iterate_knobs(AgentCacheConfig))
    if name is not None:
        knobs |= iterate_constants()
    chosen = [each for each in knobs if name in (None, each) or each.startswith(f"{name}.")]
    if not chosen:
        groups = dict.fromkeys(group for each in knobs if (group := each.rpartition(".")[0]))
        raise InputError(f"knobs {name}: there is no such knob{_suggest_knob(name or '', [*groups, *knobs])}")
    for each in chosen:
        field = knobs[each]
        extra = field.json_schema_extra
        origin = extra.get("origin") if isinstance(extra, dict) else ""
        yield f"{each}={json.dumps(field.default)}\n    {field.description}\n    {origin}"
