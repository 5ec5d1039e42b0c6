from __future__ import annotations

import re

from made_engine import make_engine, make_runtime, make_tiered_engine
from page_parts import DOCS, PARTS, write_parts
from prometheus_client.parser import text_string_to_metric_families

from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.engine.views import ToolCounts
from agentcache.server.metrics import render_metrics
from agentcache.server.snapshot_reader import Reading

SETUP = {"policy", "segments", "chunking", "obstacle", "tier_obstacle"}
LABELS = SETUP | {"how", "engine", "cause", "reason", "tool", "le", "place", "observer"}


def find_samples(*engines: EngineSnapshot) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = render_metrics(Reading(engines, 0.0)).decode()
    return {
        (sample.name.removeprefix("agentcache:"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_of_the_runtime_come_out_as_they_are() -> None:
    samples = find_samples(make_engine(2))
    rank = ("engine", "2")
    expected = {
        ("jobs", (rank,)): 3,
        ("jobs_ended_total", (("cause", "job_over"), rank)): 5,
        ("jobs_ended_total", (("cause", "expired"), rank)): 1,
        ("job_latency_seconds_bucket", (rank, ("le", "1.0"))): 2,
        ("job_latency_seconds_bucket", (rank, ("le", "10.0"))): 5,
        ("job_latency_seconds_bucket", (rank, ("le", "+Inf"))): 6,
        ("job_latency_seconds_count", (rank,)): 6,
        ("job_latency_seconds_sum", (rank,)): 40.5,
        ("answer_latency_seconds_bucket", (rank, ("le", "10.0"))): 7,
        ("answer_latency_seconds_sum", (rank,)): 26,
        ("job_turns_bucket", (rank, ("le", "4.0"))): 4,
        ("job_turns_sum", (rank,)): 21,
        ("tool_gap_seconds_total", (rank, ("tool", "search"))): 6,
        ("tool_gaps_total", (rank, ("tool", "search"))): 4,
        ("tool_gaps_total", (rank, ("tool", "(human)"))): 1,
        ("pins", (rank,)): 2,
        ("pinned_blocks", (rank,)): 40,
        ("pin_budget_blocks", (rank,)): 500,
        ("pins_begun_total", (rank,)): 9,
        ("pins_ended_total", (("cause", "returned"), rank)): 6,
        ("pins_ended_total", (("cause", "job_over"), rank)): 1,
        ("pin_held_seconds_total", (rank,)): 12.5,
        ("held_turns_total", (rank,)): 7,
        ("turn_wait_seconds_bucket", (rank, ("le", "2.5"), ("reason", "new_job"))): 3,
        ("turn_wait_seconds_sum", (rank, ("reason", "new_job"))): 1.5,
        ("prompt_tokens_total", (rank,)): 10_000,
        ("hit_tokens_total", (rank,)): 7_500,
        ("recomputed_tokens_total", (rank,)): 320,
    }
    assert {key: samples.get(key) for key in expected} == expected


def test_parts_that_failed_are_counted_by_name() -> None:
    engine = make_engine(2).model_copy(update={"observer_failures": {"misses": 1, "recording": 0}})
    samples = find_samples(engine)
    for name, failures in engine.observer_failures.items():
        assert samples["observer_failures_total", (("engine", "2"), ("observer", name))] == failures


def test_what_is_saved_and_lost_are_counters_of_their_own() -> None:
    samples = find_samples(make_engine(2), make_engine(3, comparison=None))
    rank = (("engine", "2"),)
    expected = {
        "reused_tokens_total": 7_680,
        "lru_tokens_total": 4_800,
        "prefill_saved_seconds_total": 3.5,
        "prefill_lost_seconds_total": 0.25,
    }
    found = {(name, labels): value for (name, labels), value in samples.items() if name in expected}
    assert found == {(name, rank): value for name, value in expected.items()}


def test_each_engine_has_its_series_and_one_without_runtime_none() -> None:
    samples = find_samples(make_engine(0), make_engine(1, runtime=None), make_engine(2, runtime=make_runtime(jobs=8)))
    ours = {labels: value for (name, labels), value in samples.items() if name == "jobs"}
    assert ours == {(("engine", "0"),): 3, (("engine", "2"),): 8}
    of_the_second = {name for name, labels in samples if ("engine", "1") in labels}
    assert of_the_second == {name for name, _ in find_samples(make_engine(1, runtime=None))} - {"snapshot_age_seconds"}
    assert not of_the_second & {"pins", "jobs_ended_total", "job_turns_count", "prompt_tokens_total"}


def test_a_tool_of_any_name_is_one_label_value() -> None:
    name = 'sea"rch\\\n{le="1"} 99'
    samples = find_samples(make_engine(runtime=make_runtime(tools={name: ToolCounts(gaps=2, seconds=3.0)})))
    assert samples["tool_gaps_total", (("engine", "0"), ("tool", name))] == 2


def test_no_other_labels_than_the_documented() -> None:
    engine = make_tiered_engine().model_copy(update={"observer_failures": {"misses": 0}})
    text = render_metrics(Reading((engine,), 0.0)).decode()
    assert set(re.findall(r"(\w+)=\"", text)) == LABELS


def test_two_caches_tell_places_and_bytes() -> None:
    rank, samples = ("engine", "1"), find_samples(make_tiered_engine(1))
    of_host, of_gpu = ("place", "host"), ("place", "gpu")
    expected = {
        ("hit_tokens_by_place_total", (rank, of_gpu)): 7_000,
        ("hit_tokens_by_place_total", (rank, of_host)): 500,
        ("evicted_tokens_total", (rank, of_host, ("reason", "evicted"))): 240,
        ("evicted_tokens_total", (rank, of_gpu, ("reason", "never_chosen"))): 96,
        ("evicted_tokens_total", (rank, of_gpu, ("reason", "not_worth_a_copy"))): 64,
        # With those that were overwritten, whose copies took their time as well.
        ("stored_bytes_total", (rank,)): 62 * 1024,
        ("store_seconds_total", (rank,)): 0.5,
        ("failed_stores_total", (rank,)): 7,
        ("fetched_bytes_total", (rank,)): 40 * 1024,
        ("fetch_seconds_total", (rank,)): 0.25,
        ("failed_fetches_total", (rank,)): 6,
    }
    assert {key: samples.get(key) for key in expected} == expected
    names = {name for name, _ in expected}
    assert not names & {name for name, _ in find_samples(make_engine(1))}, "one cache has no places"


def test_the_table_of_all_metrics_is_what_they_say() -> None:
    page = (DOCS / PARTS["metrics"][0]).read_text()
    assert "<!-- part: metrics -->" in page
    assert write_parts(page) == page, "python benchmarks/page_parts.py"
