from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentcache.config import AgentCacheConfig, iterate_constants, iterate_knobs
from agentcache.config_reader import read_config, read_knobs
from agentcache.errors import InputError
from agentcache.policy.registry import DEFAULT_POLICY

DOCS = Path(__file__).parents[1] / "docs"
ORIGIN = re.compile(r"(paper|measured|chosen|not tuned): \S|assumed(;|$)")
SECTION = re.compile(r'docs/([\w/-]+\.md), "([^"]+)"')
# A file of runs.
LINES = re.compile(r"\((results/[\w-]+\.jsonl)\)")

KNOBS = dict(iterate_knobs(AgentCacheConfig))
CONSTANTS = dict(iterate_constants())
BOTH = KNOBS | CONSTANTS


def origin_of(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("origin", "")) if isinstance(extra, dict) else ""


def test_a_user_sees_few_knobs() -> None:
    assert len(KNOBS) <= 28
    assert not [name for name in KNOBS if name.startswith("tuning")]


@pytest.mark.parametrize("name", BOTH)
def test_each_knob_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    assert BOTH[name].description
    assert ORIGIN.match(origin_of(BOTH[name]))


def test_sections_that_origins_name_are_in_the_results() -> None:
    named = {section for knob in BOTH.values() for section in SECTION.findall(origin_of(knob))}
    assert named
    for file, section in named:
        headings = {line.lstrip("#").strip() for line in (DOCS / file).read_text().splitlines() if line.startswith("#")}
        assert section in headings, f"docs/{file}"


@pytest.mark.parametrize("name", [name for name, knob in BOTH.items() if origin_of(knob).startswith("measured")])
def test_what_was_measured_names_its_section(name: str) -> None:
    origin = origin_of(BOTH[name])
    lines = LINES.search(origin)
    assert SECTION.search(origin) or (lines and (DOCS.parent / lines[1]).exists())


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
        ({"evictor": "vllm"}, "evictor=vllm: no policy's evictor; choose from lru, observe, agentcache"),
        ({"policy": "vllm", "evictor": "lru"}, "evictor=lru: policy vllm leaves vLLM's free list as it is"),
        ({"policy": 7}, "additional_config: agentcache.policy: Input should be a valid string"),
        ({"policy": "fifo"}, "--policy fifo: unknown; choose from "),
        (
            {"tuning": {"min_chance": 1.5}},
            "additional_config: agentcache.tuning.min_chance: Input should be less than or eq",
        ),
        (
            {"pins": {"budget": -1}},
            "additional_config: agentcache.pins.budget: Input should be greater than or equal to",
        ),
        ({"order": {"head_start_s": 3}}, "additional_config: agentcache.order.head_start_s: no such knob"),
        (
            {"tier": 3},
            "additional_config: agentcache.tier: is a group of knobs; give one of tier.enabled, ",
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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("segments.row_s=0.5", "tuning.row_s"),
        ("order.running=1", "tuning.running"),
        ("slope_ratio=7", "tuning.slope_ratio"),
    ],
)
def test_a_knob_of_another_group_is_the_one_meant(typed: str, meant: str) -> None:
    name = typed.partition("=")[0]
    with pytest.raises(InputError, match=rf"^--agentcache {name}: no such knob; did you mean {meant}\?$"):
        read_knobs([typed])


def test_a_config_cannot_change_once_it_is_read() -> None:
    config = read_config({})
    with pytest.raises(ValidationError, match="frozen"):
        config.policy = "vllm"


def test_knobs_are_read_as_they_are_typed() -> None:
    assert read_knobs([]) == {}
    typed = ["order.enabled=false", "order.patience_s=3", "lifespan_s=30", "gpu=h200", "chunking.enabled=null"]
    knobs = read_knobs(typed)
    assert knobs == {
        "order": {"enabled": False, "patience_s": 3},
        "lifespan_s": 30,
        "gpu": "h200",
        "chunking": {"enabled": None},
    }


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["segments"], "--agentcache segments: give NAME=VALUE"),
        (["segments.enable=false"], "--agentcache segments.enable: no such knob; did you mean segments.enabled?"),
        (["tuning.max_gaps=none"], "--agentcache tuning.max_gaps: Input should be a valid int"),
        (["tuning=3"], "--agentcache tuning: is a group of knobs; give one of tuning.max_gaps, tuning.row_s"),
        (["tuning.min_chanse=1"], "--agentcache tuning.min_chanse: no such knob; did you mean tuning.min_chance?"),
        (["pins.min_chanse=1"], "--agentcache pins.min_chanse: no such knob; did you mean tuning.min_chance?"),
        (["router=3"], "--agentcache router: is a group of knobs; give one of router.url"),
        (["gpu=h9000"], "--agentcache gpu: h9000 is unknown; choose from "),
        (["gpu=h200", "gpu.name=h100"], "--agentcache gpu.name=h100: gpu is given a value of its own as well"),
    ],
)
def test_knob_that_cannot_be_is_one_line(pairs: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_knobs(pairs)
    assert str(caught.value).startswith(message)
