"""Reads knobs, from vLLM's `additional_config` and as they are typed, and says which of them cannot be and why."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import ValidationError

from agentcache.closest_name import suggest
from agentcache.config import AgentCacheConfig, iterate_knobs
from agentcache.errors import InputError

CONFIG_KEY = "agentcache"
# What stands before a knob's name in a message on vLLM's configuration.
PLACE = f"additional_config: {CONFIG_KEY}."
# The same where knobs are typed.
_TYPED = "--agentcache "
# Knobs that are gone, by their dotted names: the release since which they have no effect, and why. That release accepts
# them with a warning; the next one refuses them, and takes them out of this table.
REMOVED = {
    "router.name_sessions": "0.2: name jobs in the client or in a proxy, by X-Session-ID",
    "tier.prefetch": "0.2: blocks come back to the GPU only for requests that wait for them",
}

# vLLM's own `init_logger` loads vLLM, which takes seconds.
logger = logging.getLogger("vllm.agentcache")


def read_config(additional_config: object) -> AgentCacheConfig:
    """Read the plug-in's part of vLLM's `additional_config`; defaults when it is absent. Raises InputError."""
    ours = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    return _read(ours, PLACE)


def _read(ours: object, place: str) -> AgentCacheConfig:
    """Read the plug-in's fields; `place` is what stands before a field's name where the user has typed it."""
    try:
        return AgentCacheConfig.model_validate(_drop_removed(ours, place))
    except ValidationError as error:
        first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    field = f"{place}{name}" if name else place.rstrip(".")
    raise InputError(f"{field}: {_say_why(name, first['type'], first['msg'])}")


def _drop_removed(fields: Any, place: str, parents: str = "") -> Any:
    """Return the fields, and those of groups, without knobs that are gone; warn of each."""
    if not isinstance(fields, Mapping):
        return fields
    kept = {}
    for field, value in fields.items():
        name = f"{parents}{field}"
        if name in REMOVED:
            _warn_once(f"{place}{name} has no effect since {REMOVED[name]}. Leave it out; the next release refuses it.")
        else:
            kept[field] = _drop_removed(value, place, f"{name}.")
    return kept


@cache
def _warn_once(text: str) -> None:
    """Warn once a process, which reads its configuration several times."""
    logger.warning("%s", text)


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

    Those that are gone are left out. Raises InputError for what no config can be made of.
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
    kept: dict[str, Any] = _drop_removed(knobs, _TYPED)
    _read(kept, _TYPED)
    return kept


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
