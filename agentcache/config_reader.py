"""Reads knobs, from vLLM's `additional_config` and as they are typed, and says which of them cannot be and why."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import ValidationError

from agentcache.config import AgentCacheConfig, iterate_constants, iterate_knobs
from agentcache.errors import InputError, suggest

CONFIG_KEY = "agentcache"
# What stands before a knob's name in a message on vLLM's configuration.
PLACE = f"additional_config: {CONFIG_KEY}."
# The same where knobs are typed.
_TYPED = "--agentcache "
# Old knobs by their dotted names. This release accepts them with a warning; the next one refuses them, and takes them
# out of both tables. Those that are gone have no effect, since the release that is named and for that reason.
REMOVED = {
    "order.load_control": "0.2: order.recompute_share says how long turns wait",
    "grouped.least_wait_s": "0.2: it is a constant",
    "grouped.window": "0.2: it is a constant",
    "pins.tenant_budget": "0.2: tenants gives each a share",
    "replicas.extra_jobs": "0.2: it is a constant",
    "replicas.live_s": "0.2: it is a constant",
    "router.name_sessions": "0.2: name jobs in the client or in a proxy, by X-Session-ID",
    "tier.prefetch": "0.2: blocks come back to the GPU only for requests that wait for them",
}
# These have another name now, and still take effect.
MOVED = {
    "chunking.floor": "tuning.chunking_floor",
    "chunking.threshold": "tuning.chunking_threshold",
    "grouped.prior_returns": "tuning.prior_returns",
    "lambda_limit": "tuning.lambda_limit",
    "lifespan_window": "tuning.lifespan_window",
    "order.juniors": "tuning.juniors",
    "order.least_wait_s": "tuning.least_wait_s",
    "order.reserve": "tuning.reserve",
    "order.running": "tuning.running",
    "order.seniority_s": "tuning.seniority_s",
    "pins.max_ttl_s": "tuning.max_ttl_s",
    "pins.min_chance": "tuning.min_chance",
    "record.block_tokens": "tuning.record_block_tokens",
    "reuse_probability": "tuning.reuse_probability",
    "runtime.max_jobs": "tuning.max_jobs",
    "segments.max_gaps": "tuning.max_gaps",
    "segments.row_s": "tuning.row_s",
    "slope_ratio": "tuning.slope_ratio",
    "tier.latency_s": "tuning.link_latency_s",
}

# vLLM's own `init_logger` loads vLLM, which takes seconds.
logger = logging.getLogger("vllm.agentcache")


def read_config(additional_config: object) -> AgentCacheConfig:
    """Read the plug-in's part of vLLM's `additional_config`; defaults when it is absent. Raises InputError."""
    ours = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    return _check(_rename_old(ours, PLACE), PLACE)


def _check(ours: object, place: str) -> AgentCacheConfig:
    """Check the plug-in's fields; `place` is what stands before a field's name where the user has typed it."""
    try:
        return AgentCacheConfig.model_validate(ours)
    except ValidationError as error:
        first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    field = f"{place}{name}" if name else place.rstrip(".")
    raise InputError(f"{field}: {_say_why(name, first['type'], first['msg'])}")


def _rename_old(ours: Any, place: str) -> Any:
    """Return the fields without knobs that are gone, and with new names for those that have one; warn of each."""
    if not isinstance(ours, Mapping):
        return ours
    old: dict[str, Any] = {}
    fields = _take_old(ours, old)
    for name, value in old.items():
        if name in REMOVED:
            _warn_once(f"{place}{name} has no effect since {REMOVED[name]}. Leave it out; the next release refuses it.")
            continue
        new = MOVED[name]
        group, _, field = new.partition(".")
        # What else stands in the group's place is an error of its own.
        if isinstance(renamed := fields.setdefault(group, {}), dict):
            if field in renamed:
                raise InputError(f"{place}{name}: {new} is its new name, and is given as well; leave {name} out")
            renamed[field] = value
        _warn_once(f"{place}{name} is called {new} now. Give {place}{new}; the next release refuses the old name.")
    return fields


def _take_old(fields: Mapping[str, Any], old: dict[str, Any], parents: str = "") -> dict[str, Any]:
    """Return the fields, and those of groups, without old knobs, which go into `old` by their dotted names."""
    kept: dict[str, Any] = {}
    for field, value in fields.items():
        name = f"{parents}{field}"
        if name in REMOVED or name in MOVED:
            old[name] = value
        elif not isinstance(value, Mapping):
            kept[field] = value
        # A group that had old knobs alone is gone with them.
        elif (inner := _take_old(value, old, f"{name}.")) or not _had_old(name):
            kept[field] = inner
    return kept


def _had_old(group: str) -> bool:
    return any(name.startswith(f"{group}.") for name in (*REMOVED, *MOVED))


@cache
def _warn_once(text: str) -> None:
    """Warn once a process, which reads its configuration several times."""
    logger.warning("%s", text)


def _say_why(name: str, kind: str, message: str) -> str:
    """Say why the field cannot be, `kind` and `message` being pydantic's, whose words suit values alone."""
    knobs = dict((*iterate_knobs(AgentCacheConfig), *iterate_constants()))
    if kind == "extra_forbidden":
        return f"no such knob{suggest(name, knobs, MOVED)}"
    if group := [knob for knob in knobs if name and knob.startswith(f"{name}.")]:
        return f"is a group of knobs; give one of {', '.join(group)}"
    return message.removeprefix("Value error, ")


def read_knobs(pairs: Sequence[str]) -> dict[str, Any]:
    """Read knobs as typed behind --agentcache, such as `["segments.enabled=false"]`, into the config's nested fields.

    Those that are gone are left out, and old names replaced. Raises InputError for what no config can be made of.
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
    renamed: dict[str, Any] = _rename_old(knobs, _TYPED)
    _check(renamed, _TYPED)
    return renamed


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
        raise InputError(f"knobs {name}: there is no such knob{suggest(name or '', [*groups, *knobs], MOVED)}")
    for each in chosen:
        field = knobs[each]
        extra = field.json_schema_extra
        origin = extra.get("origin") if isinstance(extra, dict) else ""
        yield f"{each}={json.dumps(field.default)}\n    {field.description}\n    {origin}"
