"""The tools an agent may call: how each is described to the model, and the function that does it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

ToolFunction = Callable[..., Any]
_Function = TypeVar("_Function", bound=ToolFunction)

# OpenAI's rule for function names; servers refuse the whole request when one tool breaks it.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its keyword arguments.

    Raises ValueError for a name that OpenAI's API refuses and for a schema that is not an object schema.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: ToolFunction

    def __post_init__(self) -> None:
        """Raise ValueError for a name or a schema that OpenAI's API refuses."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"tool name {self.name!r}: use 1 to 64 letters, digits, '_' or '-'")
        if not isinstance(self.parameters, Mapping):
            raise ValueError(
                f"tool {self.name}: parameters must be a JSON schema, not {type(self.parameters).__name__}"
            )
        if self.parameters.get("type") != "object":
            kind = self.parameters.get("type")
            raise ValueError(f"tool {self.name}: parameters must be a schema of type 'object', not {kind!r}")
        if not isinstance(self.parameters.get("properties", {}), Mapping):
            raise ValueError(f"tool {self.name}: 'properties' of the parameters must map names to schemas")

    @property
    def is_async(self) -> bool:
        """Tell whether the function is a coroutine function, or an object whose call is one."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(type(self.function).__call__)


class ToolRegistry:
    """The tools of an agent by name, in the order added."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tools' names, in the order added."""
        return tuple(self._tools)

    def add(self, tool: Tool) -> None:
        """Add a tool. Raises ValueError when one of this name is there already."""
        if tool.name in self._tools:
            raise ValueError(f"tool {tool.name} is registered twice: names must be unique")
        self._tools[tool.name] = tool

    def tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] = _NO_PARAMETERS,
    ) -> Callable[[_Function], _Function]:
        """Decorate a function to add it, under its own name and docstring unless others are given."""

        def register(function: _Function) -> _Function:
            text = description if description is not None else inspect.getdoc(function) or ""
            self.add(Tool(name or function.__name__, text, parameters, function))
            return function

        return register

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, None if there is none."""
        return self._tools.get(name)

    def as_openai(self) -> tuple[Mapping[str, Any], ...]:
        """Return the `tools` parameter of the chat API; what a `Job` carries in `tools`."""
        return tuple(
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in self._tools.values()
        )
