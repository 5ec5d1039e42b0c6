"""What copies cost: a knob goes before the profile, and the profile before what is assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lone_scheduler import make_config
from made_simulation import make_engine
from tiered_scheduler import make_tiered
from vllm.config import VllmConfig

from agentcache.config_reader import read_config
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.cpu_cache.link import find_speeds
from agentcache.engine.setup import parts
from agentcache.errors import InputError
from agentcache.models.catalog import resolve_model
from agentcache.policy import presets
from agentcache.policy.cost import CostModel, CostProfile, ProfileKey, read_profile, save_profile
from agentcache.policy.link_profile import LinkProfile, LinkSpeed, LinkSpeeds, assume_link
from agentcache.policy.presets import PROFILES
from agentcache.sim import delays
from agentcache.sim.delays import Links, find_links

KEY = ProfileKey(model="mine", gpu="cpu", tensor_parallel_size=1, dtype="bfloat16")
MODEL = CostModel(k1=1e-6, k2=3e-4, k3=1e-6, k4=3e-4, k5=2e-8, k6=2e-8, intercept_s=1e-3)
SPEEDS = LinkSpeeds(
    fetch=LinkSpeed(latency_s=0.0001, gb_s=20.0), store=LinkSpeed(latency_s=0.0002, gb_s=10.0), both_share=0.7
)
LINK = LinkProfile(source="a test", pieces=2, piece_bytes=8192, speeds=SPEEDS)


def save(folder: Path, link: LinkProfile | None = LINK) -> Path:
    profile = CostProfile(
        key=KEY, measured=True, source="test", batches=20, r_squared=0.999, cost_model=MODEL, link=link
    )
    return save_profile(profile, folder)


def configure(model_path: str, **knobs: object) -> VllmConfig:
    return make_config(model_path, SCHEDULER_CLASS, **knobs)


def find(config: VllmConfig) -> LinkSpeeds:
    return find_speeds(config, read_config(config.additional_config))


def test_without_a_profile_the_link_is_as_it_always_was(tiny_model_path: str, tmp_path: Path) -> None:
    speeds = find(configure(tiny_model_path))
    assert speeds == assume_link(64e9)
    assert speeds.fetch == speeds.store == LinkSpeed(latency_s=0.00006, gb_s=42.0)
    assert speeds.both_share == 26 / 42
    assert find(configure(tiny_model_path, cost_profile=str(save(tmp_path, link=None)))) == assume_link(64e9)


def test_no_profile_that_comes_along_changes_what_is_assumed() -> None:
    links = [read_profile(path).link for path in PROFILES.glob("*.json")]
    assert links
    assert set(links) == {None}


@pytest.mark.parametrize(
    ("knobs", "fetch", "store"),
    [
        ({}, (0.0001, 20.0), (0.0002, 10.0)),
        ({"tier": {"link_gb_s": 5.0}}, (0.0001, 5.0), (0.0002, 5.0)),
        ({"tuning": {"link_latency_s": 0.0}}, (0.0, 20.0), (0.0, 10.0)),
        ({"tier": {"link_gb_s": 5.0}, "tuning": {"link_latency_s": 1.0}}, (1.0, 5.0), (1.0, 5.0)),
    ],
)
def test_a_knob_goes_before_the_profile(
    tiny_model_path: str,
    tmp_path: Path,
    knobs: dict[str, dict[str, float]],
    fetch: tuple[float, float],
    store: tuple[float, float],
) -> None:
    speeds = find(configure(tiny_model_path, cost_profile=str(save(tmp_path)), **knobs))
    assert (speeds.fetch.latency_s, speeds.fetch.gb_s) == fetch
    assert (speeds.store.latency_s, speeds.store.gb_s) == store
    assert speeds.both_share == SPEEDS.both_share


def test_a_knob_alone_goes_before_what_is_assumed(tiny_model_path: str) -> None:
    speeds = find(configure(tiny_model_path, tuning={"link_latency_s": 0.5}))
    assert speeds.fetch == speeds.store == LinkSpeed(latency_s=0.5, gb_s=42.0)


def test_knobs_and_profiles_survive_the_way_to_the_engine(tiny_model_path: str, tmp_path: Path) -> None:
    """The whole config is written out on the way, defaults and all."""
    config = configure(tiny_model_path, cost_profile=str(save(tmp_path)))
    ours = read_config({"agentcache": json.loads(json.dumps(read_config(config.additional_config).model_dump()))})
    assert find_speeds(config, ours) == SPEEDS


def test_a_profile_that_comes_along_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(resolve_model("shape:llama-3.1-8b").path, gpu="h200")
    assert find(config) == assume_link(64e9)
    (shipped,) = map(read_profile, PROFILES.glob("*.json"))
    save_profile(shipped.model_copy(update={"link": LINK}), tmp_path)
    monkeypatch.setattr(presets, "PROFILES", tmp_path)
    assert find(config) == SPEEDS


def test_blocks_cost_their_bytes(tiny_model_path: str, tmp_path: Path) -> None:
    scheduler = make_tiered(
        tiny_model_path, tier={}, tuning={"link_latency_s": None}, cost_profile=str(save(tmp_path))
    ).scheduler
    links = find_links(scheduler)
    # One layer of two heads of 32 numbers in float32, keys and values.
    block_bytes = scheduler.block_size * 2 * 2 * 32 * 4
    assert links.fetch.block_s == pytest.approx(block_bytes / 20e9)
    assert links.store.block_s == pytest.approx(block_bytes / 10e9)
    assert (links.fetch.latency_s, links.store.latency_s, links.both_share) == (0.0001, 0.0002, 0.7)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ((None, None), "fetched at 20 GB/s after 0.1 ms (measured)."),
        ((5.0, None), "fetched at 5 GB/s after 0.1 ms (as set, the other measured)."),
        ((5.0, 0.001), "fetched at 5 GB/s after 1 ms (as set)."),
    ],
)
def test_an_engine_prices_fetches_by_it_and_says_so(
    tiny_model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    knobs: tuple[float | None, float | None],
    said: str,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(parts.logger, "info", lines.append)
    tier, tuning = {"link_gb_s": knobs[0]}, {"link_latency_s": knobs[1]}
    scheduler = make_tiered(tiny_model_path, tier=tier, tuning=tuning, cost_profile=str(save(tmp_path))).scheduler
    assert scheduler.tier is not None
    assert scheduler.tier.fetching.link == find_links(scheduler).fetch
    assert lines[-1].endswith(f"; blocks in the CPU cache {said}")


def test_a_simulation_takes_both_directions(
    tiny_model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Links] = []
    monkeypatch.setattr(delays, "HostLink", lambda links, workers: taken.append(links))  # noqa: ARG005
    make_engine(tiny_model_path, host_tokens=1600, knobs={"cost_profile": str(save(tmp_path))})
    (links,) = taken
    assert links.fetch.block_s == pytest.approx(links.store.block_s / 2)
    assert links.both_share == 0.7


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        (("speeds", "fetch", "gb_s"), 0.0, "link.speeds.fetch.gb_s: Input should be greater than or equal to 0.000001"),
        (("speeds", "store", "latency_s"), -1.0, "link.speeds.store.latency_s: Input should be greater than or equal"),
        (("speeds", "both_share"), 1.5, "link.speeds.both_share: Input should be less than or equal to 1"),
        (("speeds", "both_share"), None, "link.speeds.both_share: Input should be a valid number"),
        (("pieces",), 0, "link.pieces: Input should be greater than or equal to 1"),
        (("source",), "", "link.source: String should have at least 1 character"),
        (("speed",), 1, "link.speed: Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_is_named_by_its_field(
    tmp_path: Path, field: tuple[str, ...], value: object, complaint: str
) -> None:
    path = save(tmp_path)
    document = json.loads(path.read_text())
    place = document["link"]
    for name in field[:-1]:
        place = place[name]
    place[field[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"not a cost profile: {complaint}"):
        read_profile(path)


def test_the_section_survives_the_file_and_older_files_have_none(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert read_profile(path).link == LINK
    document = json.loads(path.read_text())
    del document["link"]
    path.write_text(json.dumps(document))
    assert read_profile(path).link is None
