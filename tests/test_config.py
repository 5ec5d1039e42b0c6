from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentcache import config_reader
from agentcache.config import AgentCacheConfig, iterate_knobs
from agentcache.config_reader import REMOVED, read_config, read_knobs
from agentcache.errors import InputError
from agentcache.policy.registry import DEFAULT_POLICY

DOCS = Path(__file__).parents[1] / "docs"
ORIGIN = re.compile(r"(paper|measured|chosen|not tuned): \S|assumed(;|$)")
SECTION = re.compile(r'docs/([\w/-]+\.md), "([^"]+)"')


KNOBS = dict(iterate_knobs(AgentCacheConfig))


def origin_of(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("origin", "")) if isinstance(extra, dict) else ""


@pytest.mark.parametrize("name", KNOBS)
def test_each_knob_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    assert KNOBS[name].description
    assert ORIGIN.match(origin_of(KNOBS[name]))


def test_sections_that_origins_name_are_in_the_results() -> None:
    named = {section for knob in KNOBS.values() for section in SECTION.findall(origin_of(knob))}
    assert named
    for file, section in named:
        headings = {line.lstrip("#").strip() for line in (DOCS / file).read_text().splitlines() if line.startswith("#")}
        assert section in headings, f"docs/{file}"


@pytest.mark.parametrize("name", [name for name, knob in KNOBS.items() if origin_of(knob).startswith("measured")])
def test_what_was_measured_names_its_section(name: str) -> None:
    assert SECTION.search(origin_of(KNOBS[name]))


@pytest.mark.parametrize("additional_config", [None, {}, {"other plug-in": {"policy": "x"}}, {"agentcache": {}}])
def test_what_is_not_given_has_its_default(additional_config: object) -> None:
    assert read_config(additional_config) == AgentCacheConfig(policy=DEFAULT_POLICY, forced_replies=False)


def test_what_is_given_is_read_and_survives_a_round_trip() -> None:
    config = read_config({"agentcache": {"policy": "vllm", "forced_replies": True}})
    assert (config.policy, config.forced_replies) == ("vllm", True)
    assert read_config({"agentcache": config.model_dump()}) == config


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"polcy": "lru"}, "additional_config: agentcache.polcy: no such knob; did you mean policy?"),
        (
            {"pins": {"budgt": 1}},
            "additional_config: agentcache.pins.budgt: no such knob; did you mean pins.budget?",
        ),
        ({"budget": 1}, "additional_config: agentcache.budget: no such knob; did you mean pins.budget?"),
        ({"policy": "asymcahe"}, "--policy asymcahe: unknown; choose from "),
        ({"evictor": "vllm"}, "evictor=vllm: no policy's evictor; choose from lru, agentcache"),
        ({"policy": "vllm", "evictor": "lru"}, "evictor=lru: policy vllm leaves vLLM's free list as it is"),
        ({"policy": 7}, "additional_config: agentcache.policy: Input should be a valid string"),
        ({"policy": "fifo"}, "--policy fifo: unknown; choose from "),
        (
            {"pins": {"min_chance": 1.5}},
            "additional_config: agentcache.pins.min_chance: Input should be less than or eq",
        ),
        (
            {"pins": {"budget": -1}},
            "additional_config: agentcache.pins.budget: Input should be greater than or equal to",
        ),
        ({"order": {"head_start_s": 3}}, "additional_config: agentcache.order.head_start_s: no such knob"),
        (
            {"chunking": 3},
            "additional_config: agentcache.chunking: is a group of knobs; give one of chunking.enabled, ",
        ),
        ({"gpu": "h9000"}, "additional_config: agentcache.gpu: h9000 is unknown; choose from "),
        ({"order": {"patience_s": -3}}, "additional_config: agentcache.order.patience_s: Input should be greater than"),
        ({"forced_replies": "perhaps"}, "additional_config: agentcache.forced_replies: Input should be a valid bool"),
        ("lru", "additional_config: agentcache: Input should be a valid dictionary"),
        (None, "additional_config: agentcache: Input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_field(ours: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_config({"agentcache": ours})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_removed_knob_has_no_effect_and_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(config_reader.logger, "warning", lambda text, *values: warned.append(text % values))
    monkeypatch.setitem(REMOVED, "pins.size", "0.9: it was too large")
    assert read_knobs(["pins.size=7", "pins.budget=0.5"]) == {"pins": {"budget": 0.5}}
    for _ in range(3):
        assert read_config({"agentcache": {"pins": {"size": 7}}}) == AgentCacheConfig()
    names = ("--agentcache pins.size", "additional_config: agentcache.pins.size")
    why = "has no effect since 0.9: it was too large. Leave it out; the next release refuses it."
    assert warned == [f"{name} {why}" for name in names]


def test_removed_knobs_are_none() -> None:
    assert KNOBS.keys().isdisjoint(REMOVED)
    assert read_knobs([f"{name}=1" for name in REMOVED]).keys() <= {name.partition(".")[0] for name in REMOVED}


def test_a_config_cannot_change_once_it_is_read() -> None:
    config = read_config({})
    with pytest.raises(ValidationError, match="frozen"):
        config.policy = "vllm"


def test_knobs_are_read_as_they_are_typed() -> None:
    assert read_knobs([]) == {}
    typed = ["segments.enabled=false", "segments.max_gaps=3", "lifespan_s=30", "gpu=h200", "chunking.enabled=null"]
    knobs = read_knobs(typed)
    assert knobs == {
        "segments": {"enabled": False, "max_gaps": 3},
        "lifespan_s": 30,
        "gpu": "h200",
        "chunking": {"enabled": None},
    }


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["segments"], "--agentcache segments: give NAME=VALUE"),
        (["segments.enable=false"], "--agentcache segments.enable: no such knob; did you mean segments.enabled?"),
        (["segments.max_gaps=none"], "--agentcache segments.max_gaps: Input should be a valid int"),
        (["router=3"], "--agentcache router: is a group of knobs; give one of router.url"),
        (["gpu=h9000"], "--agentcache gpu: h9000 is unknown; choose from "),
        (["gpu=h200", "gpu.name=h100"], "--agentcache gpu.name=h100: gpu is given a value of its own as well"),
    ],
)
def test_knob_that_cannot_be_is_one_line(pairs: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_knobs(pairs)
    assert str(caught.value).startswith(message)
