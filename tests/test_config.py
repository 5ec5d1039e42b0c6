from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentcache import config_reader
from agentcache.config import AgentCacheConfig, iterate_constants, iterate_knobs
from agentcache.config_reader import MOVED, REMOVED, list_knobs, read_config, read_knobs
from agentcache.errors import InputError
from agentcache.policy.registry import DEFAULT_POLICY
from agentcache.tuning import Tuning

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


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is warned of, also if another test has seen it already."""
    lines: list[str] = []
    config_reader._warn_once.cache_clear()
    monkeypatch.setattr(config_reader.logger, "warning", lambda text, *values: lines.append(text % values))
    return lines


def test_a_removed_knob_has_no_effect_and_is_warned_of_once(warned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOVED, "pins.size", "0.9: it was too large")
    assert read_knobs(["pins.size=7", "pins.budget=0.5"]) == {"pins": {"budget": 0.5}}
    for _ in range(3):
        assert read_config({"agentcache": {"pins": {"size": 7}}}) == AgentCacheConfig()
    names = ("--agentcache pins.size", "additional_config: agentcache.pins.size")
    why = "has no effect since 0.9: it was too large. Leave it out; the next release refuses it."
    assert warned == [f"{name} {why}" for name in names]


def test_a_moved_knob_takes_effect_and_is_warned_of_once(warned: list[str]) -> None:
    typed = ["segments.row_s=0.5", "segments.enabled=true", "tuning.max_gaps=3", "order.reserve=null"]
    constants = {"max_gaps": 3, "row_s": 0.5, "reserve": None}
    assert read_knobs(typed) == {"segments": {"enabled": True}, "tuning": constants}
    given = {"segments": {"row_s": 0.5}, "slope_ratio": 7, "tuning": {"max_gaps": 3}}
    for _ in range(3):
        config = read_config({"agentcache": given})
        assert config == AgentCacheConfig(tuning=Tuning(row_s=0.5, max_gaps=3, slope_ratio=7))
    assert given["segments"] == {"row_s": 0.5}, "what is given stays as it is"
    assert warned == [
        f"{place}{old} is called {new} now. Give {place}{new}; the next release refuses the old name."
        for place, old, new in [
            ("--agentcache ", "segments.row_s", "tuning.row_s"),
            ("--agentcache ", "order.reserve", "tuning.reserve"),
            ("additional_config: agentcache.", "segments.row_s", "tuning.row_s"),
            ("additional_config: agentcache.", "slope_ratio", "tuning.slope_ratio"),
        ]
    ]


def test_new_names_are_not_warned_of(warned: list[str]) -> None:
    assert read_config({"agentcache": read_knobs(["tuning.row_s=0.5", "pins.budget=0.5"])}).tuning.row_s == 0.5
    assert not warned


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_each_old_name_leads_to_its_constant(old: str, new: str, warned: list[str]) -> None:
    default = CONSTANTS[new].default
    assert list_knobs(read_knobs([f"{old}={json.dumps(default)}"])) == {new: default}
    with pytest.raises(InputError, match=rf"^--agentcache {new}: "):
        read_knobs([f"{old}=-1"])
    assert len(warned) == 1


def test_old_names_are_knobs_no_longer() -> None:
    assert BOTH.keys().isdisjoint(REMOVED.keys() | MOVED.keys())
    assert set(MOVED.values()) < CONSTANTS.keys()
    assert read_knobs([f"{name}=1" for name in REMOVED]) == {}


@pytest.mark.parametrize("ours", [{"grouped": {}}, {"grouped": {"window": 7}}, {"pins": {}}])
def test_a_group_of_old_knobs_alone_is_gone_with_them(ours: dict[str, object], warned: list[str]) -> None:
    assert read_config({"agentcache": ours}) == AgentCacheConfig()
    assert len(warned) == len(ours.get("grouped") or ())


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
        (["tuning=3", "segments.row_s=1"], "--agentcache tuning: is a group of knobs"),
        (["tuning.min_chanse=1"], "--agentcache tuning.min_chanse: no such knob; did you mean tuning.min_chance?"),
        (["pins.min_chanse=1"], "--agentcache pins.min_chanse: no such knob; did you mean tuning.min_chance?"),
        (
            ["pins.min_chance=0.1", "tuning.min_chance=0.1"],
            "--agentcache pins.min_chance: tuning.min_chance is its new name, and is given as well; leave pins",
        ),
        (["router=3"], "--agentcache router: is a group of knobs; give one of router.url"),
        (["gpu=h9000"], "--agentcache gpu: h9000 is unknown; choose from "),
        (["gpu=h200", "gpu.name=h100"], "--agentcache gpu.name=h100: gpu is given a value of its own as well"),
    ],
)
def test_knob_that_cannot_be_is_one_line(pairs: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_knobs(pairs)
    assert str(caught.value).startswith(message)
