from __future__ import annotations

import functools
from typing import Any

import pytest

from tool_runtime.agent.executor import Tool, ToolFunction, ToolRegistry

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


def test_as_openai_gives_every_tool_in_the_order_added() -> None:
    registry = ToolRegistry()
    registry.add(Tool("weather", "Weather of a city.", SCHEMA, weather))
    registry.add(Tool("now", "", {"type": "object", "properties": {}}, lambda: "noon"))
    assert registry.as_openai()[0] == {
        "type": "function",
        "function": {"name": "weather", "description": "Weather of a city.", "parameters": SCHEMA},
    }
    assert [tool["function"]["name"] for tool in registry.as_openai()] == ["weather", "now"] == list(registry.names)


def test_decorator_reads_name_and_docstring_and_keeps_function() -> None:
    registry = ToolRegistry()
    assert registry.tool(parameters=SCHEMA)(weather) is weather
    assert registry.get("weather") == Tool("weather", "Weather of a city.", SCHEMA, weather)


def test_decorator_takes_other_name_and_description() -> None:
    registry = ToolRegistry()

    @registry.tool(name="clock-now", description="The time.")
    def now() -> str:
        return "noon"

    assert registry.get("clock-now") == Tool("clock-now", "The time.", {"type": "object", "properties": {}}, now)
    assert registry.get("now") is None


def test_second_tool_of_a_name_is_refused() -> None:
    registry = ToolRegistry()
    registry.tool(parameters=SCHEMA)(weather)
    with pytest.raises(ValueError, match="weather is registered twice"):
        registry.tool(parameters=SCHEMA)(weather)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "größe", "ls\n", "TravelAPI.book"])
def test_names_that_openai_refuses_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="tool name"):
        Tool(name, "", SCHEMA, weather)


@pytest.mark.parametrize("name", ["a", "x" * 64, "get_weather-2"])
def test_names_that_openai_takes_are_taken(name: str) -> None:
    assert Tool(name, "", SCHEMA, weather).name == name


@pytest.mark.parametrize(
    "schema", [{}, {"type": "dict", "properties": {}}, {"type": "object", "properties": ["city"]}, "object"]
)
def test_only_object_schemas_are_taken(schema: Any) -> None:
    with pytest.raises(ValueError, match="tool weather"):
        Tool("weather", "", schema, weather)


def test_coroutine_functions_are_recognised_in_every_shape() -> None:
    async def fetch(city: str) -> str:
        return city

    class Fetcher:
        async def __call__(self, city: str) -> str:
            return city

        async def fetch(self, city: str) -> str:
            return city

    coroutines: list[ToolFunction] = [fetch, functools.partial(fetch, city="Bonn"), Fetcher(), Fetcher().fetch]
    plain: list[ToolFunction] = [weather, functools.partial(weather, city="Bonn"), str.upper]
    assert [Tool("fetch", "", SCHEMA, function).is_async for function in coroutines] == [True] * 4
    assert [Tool("fetch", "", SCHEMA, function).is_async for function in plain] == [False] * 3
