"""Reads the fields of a model's config; one that cannot be read is refused in one line that names it."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

from agentcache.errors import InputError


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The config of a whole model, or of one of its layers: the one numbered `index`, of so many `layers`.

    Every method raises InputError for a field that it cannot read.
    """

    config: Any
    index: int = 0
    layers: int = 0

    def find(self, *names: str) -> Any:
        """Return the first of the fields that is set; None without any."""
        for name in names:
            try:
                value = getattr(self.config, name, None)
            # It may be code that came with the model. Transformers itself refuses what differs from layer to layer.
            except Exception as error:
                raise self.refuse(f"cannot tell its {name} ({type(error).__name__})") from None
            if value is not None:
                return value
        return None

    def find_number(self, *names: str) -> int | None:
        """Return the first of the fields that is set, a layer's own where it is a list; None without any."""
        value = self.find(*names)
        if isinstance(value, list | tuple) and len(value) == self.layers:
            value = value[self.index]
        if value is None:
            return None
        if not isinstance(value, int | float) or value < 0 or value != value // 1:
            raise self.refuse(f"has no whole number as its {' or '.join(names)}, but {reprlib.repr(value)}")
        return int(value)

    def read_number(self, *names: str) -> int:
        """Return the first of the fields that is set; it must be at least 1."""
        if not (number := self.find_number(*names)):
            raise self.refuse(f"has no {' or '.join(names)}" + ("" if number is None else " above 0"))
        return number

    def find_list(self, *names: str) -> list[Any] | None:
        """Return the first of the fields that is set and not empty; None without any."""
        for name in names:
            if value := self.find(name):
                if not isinstance(value, list | tuple):
                    raise self.refuse(f"has no list as its {name}, but {reprlib.repr(value)}")
                return list(value)
        return None

    def split(self, layers: int) -> list[ConfigFields]:
        """Return the fields of each layer, which are the model's own where layers do not differ."""
        if not self.find("is_heterogeneous"):
            return [ConfigFields(self.config, index, layers) for index in range(layers)]
        configs = self.find("per_layer_config")
        if len(configs) != layers:
            raise self.refuse(f"has {len(configs)} layers in per_layer_config and {layers} in layer_types")
        return [ConfigFields(configs[index], index, layers) for index in range(layers)]

    def refuse(self, what: str) -> InputError:
        """Make the error."""
        return InputError(f"the model's config ({type(self.config).__name__}) {what}")


def shares_cache(layer: ConfigFields) -> bool:
    """Tell whether it reads the keys and values of a layer before it and has none of its own, as in Gemma-3n and 4."""
    return layer.index >= layer.layers - (layer.find_number("num_kv_shared_layers") or 0)
