"""`agentcache knobs`: every knob with its default, its meaning, and where the default comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentcache.closest_name import suggest
from agentcache.config import AgentCacheConfig, iterate_knobs
from agentcache.errors import InputError


def list_knobs(name: str | None) -> Iterator[str]:
    """Describe the knobs, one text each; those of a group for "pins", and one for "pins.budget".

    Raises InputError for a name that none has.
    """
    knobs = dict(iterate_knobs(AgentCacheConfig))
    chosen = [each for each in knobs if name in (None, each) or each.startswith(f"{name}.")]
    if not chosen:
        groups = dict.fromkeys(group for each in knobs if (group := each.rpartition(".")[0]))
        raise InputError(f"knobs {name}: there is no such knob{suggest(name or '', [*groups, *knobs])}")
    for each in chosen:
        field = knobs[each]
        extra = field.json_schema_extra
        origin = extra.get("origin") if isinstance(extra, dict) else ""
        yield f"{each}={json.dumps(field.default)}\n    {field.description}\n    {origin}"
