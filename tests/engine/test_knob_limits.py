"""A number that no scheduler can be made with is refused on the command line, before the engine starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from lone_scheduler import LoneScheduler, make_config, make_scheduler
from pydantic import BaseModel
from sizes import IS_THOROUGH

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY, read_config, read_knobs
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.errors import InputError
from agentcache.policy.registry import POLICIES

SMALL = ["-9223372036854775809", "0", "5e-324", "1e-6", "1"]
LARGE = ["1000000000", "1e300", str(2**63), "1" + 400 * "0", "1" + 5000 * "0", "1e999", "NaN"]
EXTREMES = [*SMALL, *LARGE]


def list_numbers(model: type[BaseModel], parents: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from list_numbers(field.annotation, f"{parents}{name}.")
        elif field.annotation in (int, float, float | None):
            yield parents + name


NUMBERS = list(list_numbers(AgentCacheConfig))
# Between them they have every part that a number is of.
TRIED = list(POLICIES) if IS_THOROUGH else ["asymcache", "agentcache", "continuum-paper"]


@pytest.fixture(scope="module")
def vllm_config(tiny_model_path: str) -> Any:
    return make_config(tiny_model_path, SCHEDULER_CLASS)


def run_requests(vllm_config: Any, knobs: dict[str, Any]) -> None:
    vllm_config.additional_config = {CONFIG_KEY: knobs}
    lone = LoneScheduler(make_scheduler(vllm_config, 64))
    for name in ("one", "two"):
        lone.add(name, list(range(100)), output_tokens=3, calls=(), session_id="job")
        while not lone.idle:
            lone.step()


def test_there_are_numbers_to_try() -> None:
    assert {"lifespan_s", "tuning.max_gaps", "order.patience_s", "pins.budget"} <= set(NUMBERS)


def read_extreme(name: str, text: str) -> dict[str, Any] | str:
    """The knobs, or the complaint."""
    try:
        return read_knobs([f"{name}={text}"])
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_that_is_taken_works(vllm_config: Any, name: str) -> None:
    found = [read_extreme(name, text) for text in EXTREMES]
    complaints = [each for each in found if isinstance(each, str)]
    assert complaints
    assert all(each.startswith(f"--agentcache {name}: ") for each in complaints)
    assert not any("\n" in each for each in complaints)
    taken = [each for each in found if not isinstance(each, str)]
    for knobs in taken if IS_THOROUGH else (taken[0], taken[-1]):
        for policy in TRIED:
            run_requests(vllm_config, {"policy": policy, **knobs})


def test_the_defaults_are_within_the_limits() -> None:
    defaults = AgentCacheConfig().model_dump()
    assert read_config({CONFIG_KEY: json.loads(json.dumps(defaults))}).model_dump() == defaults
