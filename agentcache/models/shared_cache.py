"""Which layers of a model have no keys and values of their own."""

from __future__ import annotations

from agentcache.models.config_fields import ConfigFields


def shares_cache(layer: ConfigFields) -> bool:
    """Tell whether it reads the keys and values of a layer before it and has none of its own, as in Gemma-3n and 4."""
    return layer.index >= layer.layers - (layer.find_number("num_kv_shared_layers") or 0)
