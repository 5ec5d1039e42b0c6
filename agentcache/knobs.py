"""`agentcache knobs`: every knob with its default, its meaning, and where the default comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentcache.closest_name import suggest
from agentcache.config import AgentCacheConfig, iterate_constants, iterate_knobs
from agentcache.config_reader import MOVED
from agentcache.errors import InputError


def list_knobs(name: str | None) -> Iterator[str]:
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
