"""What the doctor says of a server's counts."""

from __future__ import annotations

from typing import Any

import pytest
from made_engine import make_engine, make_runtime

from agentcache.doctor.facts import LOSSES
from agentcache.doctor.findings import diagnose
from agentcache.engine.views import PLACE_OF

PARSER = {"runtime": {"tool_parser": "hermes"}}


def read_engine(**runtime: Any) -> dict[str, Any]:
    """As it comes out of GET /agentcache/state: a server with nothing to mend but what is given."""
    healthy: dict[str, Any] = {
        **{"prompt_tokens": 10_000, "hit_tokens": 9_000, "missed_tokens": {"new": 1000}},
        **{"changed_prompts": {}, "found_jobs": {"named": 50, "first": 3}, "held_turns": 2},
    }
    engine = make_engine(runtime=make_runtime(**{**healthy, **runtime}))
    knobs = {**engine.knobs, **PARSER}
    return engine.model_copy(update={"knobs": knobs}).model_dump(mode="json")


def list_texts(engine: dict[str, Any], *jobs: dict[str, Any]) -> list[str]:
    return [f"{finding.text} {finding.advice}" for finding in diagnose([engine], jobs).findings]


def test_a_healthy_server_has_nothing_to_mend() -> None:
    found = diagnose([read_engine()], [])
    assert found.findings == ()
    assert found.facts[0] == "10,000 prompt tokens, of which 90.0 % came from the cache."
    assert found.facts[1].split() == ["10.0", "%", "never", "seen", "before"]
    assert found.healthy == (
        "Nothing to mend: 0.0 % of the prompt tokens were evicted and computed again (10 % would be told), 0.0 % were "
        "cached behind a gap (5 %), 0 of 53 prompts left the last turn of their job (2 %); tool calls are read, no "
        "part failed."
    )
    assert diagnose([read_engine(changed_prompts={"history changed": 50})], []).healthy == ""


def test_the_verdict_is_of_jobs_under_way() -> None:
    jobs = [{"last_prompt_tokens": 8_000}, {"last_prompt_tokens": 8_000, "is_over": True}, {"last_prompt_tokens": None}]
    engine = read_engine(jobs=50, missed_tokens={"evicted": 5_000})
    assert diagnose([engine], jobs).verdict.startswith("Keep it on: 24.0 % of the prompt tokens")
    assert diagnose([engine], jobs).verdict.endswith("; pressure 0.5.")


def test_parts_that_failed_are_named_with_what_to_do() -> None:
    engine = {**read_engine(), "observer_failures": {"misses": 1, "losses": 0, "recording": 1}}
    (text,) = list_texts(engine)
    assert text.startswith("Failed, and off since: misses, recording. Requests are served as before")
    assert "traceback" in text
    assert "restart the server" in text


def test_jobs_that_are_counted_no_more_are_still_followed() -> None:
    engine = {**read_engine(), "runtime": None, "observer_failures": {"job_stats": 1}}
    (text,) = list_texts(engine)
    assert text.startswith("Failed, and off since: job_stats.")


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("tools reordered", "in one order"),
        ("tools changed", "declare all of them"),
        ("system message changed", "a date"),
        ("history changed", "edits or shortens"),
        ("history summarised", "with the same system message and tools"),
        ("history truncated", "all behind the cut"),
        ("history edited", "old results of tools"),
        ("reply not repeated", "with their reasoning"),
        ("unknown", "before the end: compare two requests"),
        ("of a later version", "compare two requests"),
    ],
)
def test_what_a_client_changes_is_named_with_an_example(cause: str, advice: str) -> None:
    engine = read_engine()
    engine["runtime"]["changed_prompts"] = {cause: 7}
    job = {"session": "evil\x1b[31m" + "x" * 99, "last_change": {"cause": cause, "at_token": 4096, "role": "system"}}
    (text,) = list_texts(engine, {"session": "another", "last_change": None}, job)
    why = "cause not known" if cause == "unknown" else cause
    assert text.startswith(
        f"7 of 53 prompts left the last turn of their job: {why}; for example at token 4,096 (system)"
    )
    assert advice in text
    assert "\x1b" not in text
    assert len(text) < 400


def test_what_was_left_behind_is_told_in_tokens() -> None:
    (text,) = list_texts(read_engine(changed_prompts={"history edited": 7}, left_tokens={"history edited": 97_000}))
    assert text.startswith("7 of 53 prompts left the last turn of their job: history edited; 97,000 of its tokens")


def test_text_shows_what_has_changed() -> None:
    engine = read_engine()
    engine["runtime"]["changed_prompts"] = {"system message changed": 7}
    change = {"cause": "system message changed", "at_token": 32, "role": "system", "text": None}
    text = {"at_token": 37, "before": "Today is\x1b[31m", "was": " Monday.", "now": " Tuesday."}
    jobs = [{"session": "bare", "last_change": change}, {"session": "mine", "last_change": {**change, "text": text}}]
    (finding,) = diagnose([engine], jobs).findings
    assert finding.text.endswith("for example at token 37 (system) of session “mine”.")
    assert finding.example == ("was: …Today is·[31m Monday.…", "now: …Today is·[31m Tuesday.…")
    assert diagnose([engine], jobs[:1]).findings[0].example == ()


@pytest.mark.parametrize(
    ("runtime", "part"),
    [
        ({"missed_tokens": {"evicted": 1500, "new": 10}}, "too small"),
        ({"missed_tokens": {"behind a gap": 600, "new": 10}}, "behind a gap"),
        ({"missed_tokens": {"at another engine": 600, "new": 10}}, "raise replicas.spill_factor"),
        ({"found_jobs": {"first": 40, "unmatched": 6, "repeated": 5}}, "6 of 11 requests"),
        ({"held_turns": 3}, "3 of 53 requests waited"),
    ],
)
def test_what_the_server_lacks_is_named(runtime: dict[str, Any], part: str) -> None:
    (text,) = list_texts(read_engine(**runtime))
    assert part in text


def test_what_requests_waited_for_is_told_in_the_mean() -> None:
    def wait(total_s: float) -> dict[str, Any]:
        return {"bounds": (1.0,), "buckets": (0,), "count": 9, "total": total_s}

    def tell(**waits: dict[str, Any]) -> list[str]:
        facts = diagnose([read_engine(waits={name.replace("_", " "): each for name, each in waits.items()})], []).facts
        return [fact for fact in facts if " s " in fact]

    assert tell(pins=wait(26.5), new_job=wait(79.5)) == [
        "Requests waited 2.0 s in the mean until they ran:",
        "    1.5 s as new jobs, which leave room for those further on",
        "    0.5 s for blocks that are kept for jobs whose tools run",
    ]
    assert tell(pins=wait(1.0)) == []


def test_a_few_changes_and_first_requests_are_no_findings() -> None:
    assert list_texts(read_engine(changed_prompts={"history changed": 1})) == []
    assert list_texts(read_engine(found_jobs={"first": 500, "unmatched": 1, "repeated": 2})) == []


def test_obstacles_of_the_engine_are_told_once() -> None:
    engine = read_engine()
    engine["segments_obstacle"] = "speculative decoding is on"
    engine["tier_obstacle"] = "KV events are on"
    engine["knobs"]["runtime"]["tool_parser"] = None
    found = diagnose([engine, engine], []).findings
    assert [finding.text for finding in found] == [
        "Cached blocks are reused as prefixes only: speculative decoding is on.",
        "The CPU cache is vLLM's own tier, not steered: KV events are on.",
        "Tool calls are not read, so nothing is kept while tools run.",
    ]


def test_a_server_without_turns_or_runtime_says_so() -> None:
    assert diagnose([read_engine(prompt_tokens=0)], []).facts == ("No turn of a job has ended yet.",)
    (finding,) = diagnose([make_engine(runtime=None, policy="lru").model_dump(mode="json")], []).findings
    assert finding.text == "Policy lru follows no jobs, so nothing is known of their misses."


TIERED = {"missed_tokens": {"evicted": 1500, "new": 10}, "hits": {"gpu": 8000, "host": 500}}


def test_a_host_cache_that_loses_most_is_to_be_larger() -> None:
    (text,) = list_texts(read_engine(**TIERED, evicted_from={"evicted": 800, "never chosen": 700}))
    assert text.endswith("Most of these were evicted from the CPU cache: raise --kv-offloading-size.")
    (text,) = list_texts(read_engine(**TIERED, evicted_from={"evicted": 700, "never chosen": 800}))
    assert "kv-offloading-size" not in text, "it is there, and loses less than the GPU"
    (text,) = list_texts(read_engine(missed_tokens={"evicted": 1500, "new": 10}))
    assert "add --kv-offloading-size" in text
    (text,) = list_texts(read_engine(**TIERED))
    assert "kv-offloading-size" not in text, "vLLM's own connector is there"


def test_places_are_told_where_there_are_two_caches() -> None:
    facts = diagnose([read_engine(**TIERED, evicted_from={"evicted": 800, "never chosen": 200})], []).facts
    assert facts[-4:] == (
        "80.0 % were hit on the GPU, and 5.0 % were fetched from the CPU cache.",
        "Of the evicted:",
        "   80.0 % had been in the CPU cache, and were evicted there",
        "   20.0 % were lost by the GPU before they were chosen for a copy",
    )
    hits = {"gpu": 7000, "host": 0, "disk": 1000, "elsewhere": 250}
    assert diagnose([read_engine(hits=hits)], []).facts[-1] == (
        "70.0 % were hit on the GPU, 0.0 % were fetched from the CPU cache, 10.0 % from disk, and 2.5 % from elsewhere."
    )


def test_every_way_to_lose_a_block_has_words() -> None:
    assert set(LOSSES) == set(PLACE_OF)


@pytest.mark.parametrize(
    ("turns", "failures", "is_told"), [(0, 10, True), (4, 6, True), (5, 5, False), (0, 9, False), (20, 0, False)]
)
def test_replies_that_are_cut_off_are_told_where_most_are(*, turns: int, failures: int, is_told: bool) -> None:
    texts = list_texts(read_engine(), {"turn_count": turns, "failure_count": failures}, {"turn_count": 0})
    told = f"{failures} of {turns + failures} replies to the latest jobs were cut off, broken off or failed"
    assert [text.startswith(told) for text in texts] == [True] * is_told
