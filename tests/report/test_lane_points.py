"""Closed loops under rising load: which are on one line, which on the front, and what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_run import make_events, make_job, make_record, make_request, write_run
from rich.text import Text
from shown_page import read_page

from agentcache.report.builder import read_report, write_report
from agentcache.report.events import Event, PolicyEvent
from agentcache.report.figure import render_svg
from agentcache.report.html import render_html
from agentcache.report.lane_points import LanePoint, describe_front, find_front, join_numbers, make_points
from agentcache.report.plots import plot_front
from agentcache.report.policy_run import group_by_policy
from agentcache.report.summary import PolicySummary, summarize_policy
from agentcache.report.terminal import points_table

DURATION_S = 10.0


def make_loop(policy: str, *, requests: int, reply_s: float) -> list[Event]:
    """So many requests of 100 tokens, of which 80 are cached and 90 could be; replies of 10 take `reply_s`."""
    tokens = {"prompt_tokens": 100, "cached_tokens": 80, "infinite_tokens": 90, "output_tokens": 10}
    asked = [make_request(policy, f"s{n}", 0, 0.0, 0.0, reply_s=reply_s, **tokens) for n in range(requests)]
    jobs = [make_job(policy, f"s{n}", 0.0, reply_s) for n in range(requests)]
    end = PolicyEvent(
        policy=policy, block_size=16, cache_tokens=65_536, preemptions=0, gpus=1, window_s=(0.0, DURATION_S)
    )
    return [*asked, *jobs, end]


def figures_of(policy: str, requests: int, reply_s: float) -> PolicySummary:
    return summarize_policy(group_by_policy(make_loop(policy, requests=requests, reply_s=reply_s))[policy])


def make_point(line: str, lanes: int, requests: int, reply_s: float) -> LanePoint:
    return LanePoint(line, lanes, figures_of(line, requests, reply_s))


def write_loops(folder: Path, **settings: float) -> list[Path]:
    """Runs of 4, 8 and 16 lanes: the last serve fewer requests, more slowly; `asymcache` serves more than `lru`."""
    folders = []
    for lanes, requests, reply_s in ((16, 5, 4.0), (4, 4, 1.0), (8, 8, 2.0)):
        events = make_loop("lru", requests=requests, reply_s=reply_s)
        events += make_loop("asymcache", requests=requests + 1, reply_s=reply_s)
        changes = {"lanes": lanes, "jobs": lanes, "settings": {"concurrency": lanes, "duration_s": 10.0, **settings}}
        folders.append(write_run(folder / f"lanes-{lanes}", events, **changes))
    return folders


def test_the_front_is_what_no_other_point_beats_in_both() -> None:
    slow, fast, beaten = (make_point("lru", 8, 9, 2.0), make_point("lru", 4, 5, 1.0), make_point("vllm", 8, 8, 2.0))
    as_good = make_point("vllm", 4, 5, 1.0)
    assert find_front([slow, fast, beaten, as_good]) == [slow, fast, as_good]
    assert find_front([]) == []


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=6))
def test_every_point_off_the_front_is_beaten_by_one_on_it(shapes: list[tuple[int, float]]) -> None:
    points = [make_point("lru", lanes, *shape) for lanes, shape in enumerate(shapes)]
    front = find_front(points)
    assert front
    for point in points:
        user, gpu = point.place or (0.0, 0.0)
        others = [each.place or (0.0, 0.0) for each in front if each.place != point.place]
        assert (point in front) != any(their >= user and more >= gpu for their, more in others)


def test_a_policy_that_broke_is_off_the_front_and_the_plot() -> None:
    broken = LanePoint("lru", 8, summarize_policy(group_by_policy(make_events("lru", 3)[:-1])["lru"]))
    measured = make_point("lru", 4, 3, 1.0)
    assert find_front([measured, broken]) == [measured]
    assert [text.get_text() for text in plot_front([measured, broken]).axes[0].texts] == ["4"]
    assert list(points_table([measured, broken]).columns[2].cells)[1] == Text("–")
    assert describe_front([broken]) is None
    assert render_svg(plot_front([broken]), "empty").startswith("<svg")


def test_runs_of_other_settings_are_lines_of_their_own() -> None:
    figures = {"lru": figures_of("lru", 3, 1.0)}
    records = [
        make_record(lanes=lanes, jobs=lanes, seed=seed, settings={"concurrency": lanes, **knobs})
        for lanes in (4, 8)
        for seed in (1, 2)
        for knobs in ({}, {"pins.budget": 0.5})
    ]
    lines = {point.line for point in make_points([(record, figures) for record in records])}
    assert lines == {
        "lru seed=1",
        "lru seed=2",
        "lru seed=1 pins.budget=0.5",
        "lru seed=2 pins.budget=0.5",
    }


@pytest.mark.parametrize("lanes", [(None, None), (4, None), (4, 4), (4, 8, 8), (4,)], ids=str)
def test_other_runs_are_compared_as_ever(lanes: tuple[int | None, ...]) -> None:
    figures = {"lru": figures_of("lru", 3, 1.0)}
    assert make_points([(make_record(lanes=each), figures) for each in lanes]) == ()


def test_a_report_of_loops_has_their_table_by_lanes(tmp_path: Path) -> None:
    report = write_report(write_loops(tmp_path), tmp_path)
    text = read_page(tmp_path / "report.html")
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    told = [(row.split(" | ")[0], row.split(" | ")[1], row.endswith(" yes | ")) for row in rows]
    assert told == [
        ("| 4", "lru", False),
        ("| 4", "asymcache", True),
        ("| 8", "lru", False),
        ("| 8", "asymcache", True),
        ("| 16", "lru", False),
        ("| 16", "asymcache", False),
    ]
    # 5 requests of 110 tokens in 10 s, and 10 tokens a second for each; hits beside what could be hit.
    assert "| 4 | asymcache | 55 | 50 | 5.0 |" in text
    assert "| 80.0 | 90.0 | 5 | 0 | yes |" in text
    assert "On the front of throughput and interactivity: asymcache with 4 and 8 lanes." in text
    assert "Closed loops of 4, 8 and 16 lanes of bfcl multi-turn" in text
    assert "2 policies: lru, asymcache." in text
    assert "The runs differ" not in text
    # What all runs have in common is said once.
    assert text.count("Tool durations are the recorded ones.") == 1
    assert next(iter(report.summary.policies)) == "lanes-16: lru"


def test_the_page_has_the_front_as_its_only_picture(tmp_path: Path) -> None:
    page = render_html(read_report(write_loops(tmp_path)))
    assert page.count("<svg") == 1
    assert "Throughput against interactivity" in page
    assert page.count('<tr class="front">') == 2


def test_the_plot_has_a_line_a_policy_and_lanes_at_points(tmp_path: Path) -> None:
    figure = plot_front(read_report(write_loops(tmp_path)).points)
    axes = figure.axes[0]
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]  # type: ignore[arg-type]
    assert [list(line.get_xdata()) for line in lines] == [[10.0, 5.0, 2.5]] * 2  # type: ignore[arg-type]
    assert [list(line.get_ydata()) for line in lines] == [[44.0, 88.0, 55.0], [55.0, 99.0, 66.0]]  # type: ignore[arg-type]
    assert [text.get_text() for text in axes.texts] == ["4", "8", "16"] * 2
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]  # type: ignore[arg-type]
    assert [point.get_fillstyle() for point in points] == ["none"] * 3 + ["full", "full", "none"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["lru", "asymcache"]


def test_numbers_of_points_at_one_place_are_told_apart() -> None:
    points = [make_point(policy, 4, requests=3, reply_s=1.0) for policy in ("vllm", "lru", "agentcache")]
    texts = plot_front([*points, make_point("lru", 8, requests=9, reply_s=0.3)]).axes[0].texts
    assert [text.get_text() for text in texts] == ["4", "4", "8", "4"]
    places = [text.xyann for text in texts if text.get_text() == "4"]  # type: ignore[attr-defined]
    assert len(set(places)) == 3
    assert len({text.get_color() for text in texts}) == 3


def test_numbers_stay_inside_the_plot() -> None:
    points = [make_point(policy, 4, requests=3, reply_s=1.0) for policy in ("vllm", "lru", "agentcache")]
    texts = plot_front([*points, make_point("lru", 8, requests=9, reply_s=0.01)]).axes[0].texts
    beside = [text.xyann[0] for text in texts if text.get_text() == "4"]  # type: ignore[attr-defined]
    assert (len(beside), min(beside) > 0) == (3, True)


def test_two_sweeps_of_other_knobs_share_one_picture(tmp_path: Path) -> None:
    folders = [*write_loops(tmp_path / "plain"), *write_loops(tmp_path / "half", **{"pins.budget": 0.5})]
    points = read_report(folders).points
    assert {point.line for point in points} == {
        "lru",
        "asymcache",
        "lru pins.budget=0.5",
        "asymcache pins.budget=0.5",
    }
    assert len(points) == 12


def test_numbers_are_joined_as_in_a_sentence() -> None:
    assert [join_numbers(each) for each in ([4], [4, 8], [4, 8, 16])] == ["4", "4 and 8", "4, 8 and 16"]
