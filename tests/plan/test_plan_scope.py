"""What part of a recording a plan is of, and what it says of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_plan import make_plan, plan_settings, run_plan
from recorded_lines import make_line, write_recording

from agentcache.plan.settings import PlanSettings
from agentcache.plan.stretch import find_busiest
from workloads.recording.line import Line


def test_the_busiest_stretch_takes_the_least_time(tmp_path: Path) -> None:
    requests = [Line.model_validate(make_line(time, 5, 5, [1])) for time in (0, 50, 100, 101, 102, 500)]
    assert [each.timestamp for each in find_busiest(requests, 3)] == [100, 101, 102]
    assert find_busiest(requests, 6) is requests
    path = write_recording(tmp_path / "r.jsonl", *(make_line(time, 5, 5, [time]) for time in (0, 1000, 1001)))
    run_plan(plan_settings(path, tmp_path, policies=("lru",), kv_tokens=(7_000,), requests=2))
    page = (tmp_path / "plan.html").read_text()
    assert "the busiest stretch, 2 requests of 3" in page
    assert "All figures are of the busiest 2 of 3 recorded requests, in a row: 66.7 % of them." in page
    assert "would hit 0.0 % of its tokens, and 0.0 % of all (--requests takes more)." in page


def test_the_page_says_what_the_cut_off_beginning_costs(tmp_path: Path) -> None:
    ids = [1, 2, 3, 4]
    path = write_recording(tmp_path / "r.jsonl", *(make_line(time, 40, 5, ids) for time in (0, 5000, 5001)))
    run_plan(plan_settings(path, tmp_path, policies=("lru",), kv_tokens=(7_000,), requests=2))
    # In blocks of 16, the last token aside: 32 of 40 from the second request on.
    assert "would hit 40.0 % of its tokens, and 53.3 % of all" in (tmp_path / "plan.html").read_text()


def write_growing(path: Path) -> Path:
    """A session that outgrows 7,000 tokens, one that does not, a request without a reply, and later ones."""
    return write_recording(
        path,
        make_line(0, 6000, 5, list(range(600)), session="s"),
        make_line(200, 9000, 5, list(range(900)), session="s"),
        make_line(300, 9500, 5, list(range(950)), session="s"),
        make_line(400, 3000, 5, list(range(300)), session="t"),
        make_line(401, 40, 0, [9001, 9002, 9003, 9004]),
        make_line(90_000, 9000, 5, list(range(900)), session="u"),
    )


def test_scope_and_facts_count_what_is_simulated(tmp_path: Path) -> None:
    path = write_growing(tmp_path / "r.jsonl")
    sizes = {"policies": ("lru",), "kv_tokens": (7_000, 14_000)}
    made = make_plan(plan_settings(path, tmp_path / "out", requests=5, **sizes))
    assert made.scope == (
        "All figures are of 2 of the busiest 5 of 6 recorded requests, in a row: 33.3 % of them; 2 more had grown "
        "beyond the smallest cache, 6,992 tokens: give larger --kv-tokens; 1 more had no reply."
    )
    assert made.facts["traffic"].startswith("2 requests in")
    assert made.facts["tools"] == "none were called"
    assert made.facts["tokens"] == "9,000 of prompts (mean context 4,500), 10 of replies"
    made = make_plan(plan_settings(path, tmp_path / "all", policies=("lru",), kv_tokens=(200_000,)))
    assert made.scope == (
        "All figures are of 5 of all 6 requests that were recorded: 83.3 % of them; 1 more had no reply."
    )


def test_calls_are_counted_by_tool(tmp_path: Path) -> None:
    called = ["a", "a", "b", "c", "d", "e", "f", "g"]
    first = make_line(0, 50, 5, list(range(6)), session="s", called=called, end="calls")
    path = write_recording(tmp_path / "r.jsonl", first, make_line(900, 90, 5, list(range(10)), session="s"))
    made = make_plan(plan_settings(path, tmp_path / "out", policies=("lru",), kv_tokens=(7_000,)))
    assert made.facts["tools"] == "a 2, b 1, c 1, d 1, e 1, others 2"
    assert made.facts["tokens"] == "140 of prompts (mean context 70), 10 of replies"


def test_what_the_model_cannot_take_is_said_to_be_so(tmp_path: Path) -> None:
    long = make_line(0, 200_000, 5, list(range(20_000)))
    path = write_recording(tmp_path / "r.jsonl", make_line(0, 50, 5, list(range(5))), long)
    made = make_plan(plan_settings(path, tmp_path / "out", policies=("lru",), kv_tokens=(300_000,)))
    assert made.scope.endswith("1 more had grown beyond the model's context, 131,072 tokens: give another --model.")


def test_an_endless_cache_has_one_figure(tmp_path: Path) -> None:
    path = write_growing(tmp_path / "r.jsonl")
    made = make_plan(plan_settings(path, tmp_path / "out", requests=5, policies=("lru",), kv_tokens=(7_000,)))
    column = made.outcomes[0].endless_hits
    assert 0 < column < 0.4
    assert f"would hit {column:.1%} of its".replace("%", " %") in made.notes[0]


@pytest.mark.parametrize(
    ("longest", "sizes"),
    [(496, (1007, 503, 2014)), (497, (1007, 2014)), (1000, (1007, 2014)), (1500, (1007, 2014))],
)
def test_default_caches_hold_the_longest_request(
    longest: int, sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what the GPU has room for, 1,007 tokens in blocks of 16: the next larger one may be no choice."""
    monkeypatch.setattr(PlanSettings, "room", 1007)
    taken = plan_settings(tmp_path, tmp_path, kv_tokens=()).leave_out_small(longest)
    assert taken.kv_tokens == sizes
    own = plan_settings(tmp_path, tmp_path, kv_tokens=(100,))
    assert own.leave_out_small(longest) == own


def test_a_size_that_is_left_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanSettings, "room", 10_000)
    path = write_growing(tmp_path / "r.jsonl")
    made = make_plan(plan_settings(path, tmp_path / "out", policies=("lru",), kv_tokens=()))
    assert [each.cell.kv_tokens for each in made.outcomes] == [10_000, 20_000]
    assert made.notes[0] == (
        "A cache of 4,992 tokens is left out, as the longest request has 9,505 (--kv-tokens 4992 plans it)."
    )
    assert made.scope.startswith("All figures are of 5 of all 6")
