"""What the plots show: lines, lanes, labels, and SVG that can stand beside another."""

from __future__ import annotations

import re
from collections import Counter

import matplotlib
import numpy as np
import pytest
from made_run import make_events, make_job, make_request, make_tool_call
from matplotlib.figure import Figure

from agentcache.report.events import Event, RequestEvent
from agentcache.report.figure import pick_mark, render_svg, shorten
from agentcache.report.html import PLOTS, Plot
from agentcache.report.plots import plot_hit_rate, plot_latency_cdf, plot_ttft
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.report.swim_lanes import (
    MAX_AGENT_LANES,
    MAX_LANES,
    Segment,
    build_lanes,
    choose_lanes,
    plot_swim_lanes,
    split_request,
)


def run_of(*events: Event) -> dict[str, PolicyRun]:
    return group_by_policy(events)


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_cdf_steps_at_each_finished_job() -> None:
    figure = plot_latency_cdf(
        run_of(
            make_job("lru", "a", 0.0, 8.0),
            make_job("lru", "b", 1.0, 3.0),
            make_job("lru", "c", 0.0, 99.0, status="failed"),
        )
    )
    (line,) = figure.axes[0].lines
    assert np.array_equal(line.get_xdata(), [2.0, 2.0, 8.0])
    assert np.array_equal(line.get_ydata(), [0.0, 50.0, 100.0])
    assert figure.axes[0].get_xlabel() == "job latency (s)"


def test_hit_rate_accumulates_in_order_of_replies() -> None:
    late = make_request("lru", "a", 0, 0.0, 5.0, prompt_tokens=300, cached_tokens=100)
    early = make_request("lru", "b", 0, 0.0, 1.0, prompt_tokens=100)
    failed = make_request("lru", "c", 0, 0.0, 2.0, error="refused")
    (line,) = plot_hit_rate(run_of(late, failed, early)).axes[0].lines
    assert np.array_equal(line.get_xdata(), [1.0, 5.0])
    assert np.array_equal(line.get_ydata(), [0.0, 25.0])


def test_ttft_shows_every_answered_request_and_the_medians() -> None:
    requests = [make_request("lru", "a", turn, 0.0, 0.1 * turn + 0.1, prompt_tokens=100 * turn) for turn in range(10)]
    cut_off = make_request("lru", "b", 0, 0.0, 2.0).model_copy(update={"error": "connection lost while decoding"})
    axes = plot_ttft(run_of(*requests, cut_off)).axes[0]
    assert np.shape(axes.collections[0].get_offsets()) == (10, 2)
    assert np.asarray(axes.lines[0].get_xdata()) == pytest.approx([200.0, 700.0])
    assert np.asarray(axes.lines[0].get_ydata()) == pytest.approx([0.3, 0.8])


def test_wide_range_of_ttft_is_drawn_on_a_logarithmic_axis() -> None:
    requests = [make_request("lru", "a", turn, 0.0, wait, prompt_tokens=9) for turn, wait in enumerate((0.01, 5.0))]
    axes = plot_ttft(run_of(*requests)).axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "TTFT (s, log scale)"


def test_request_is_cut_into_queue_prefill_and_decode() -> None:
    request = make_request("lru", "a", 0, 10.0, 3.0, reply_s=4.0, queue_s=1.0, prefill_s=1.9)
    assert list(split_request(request)) == [
        Segment("queue", 10.0, 11.0),
        Segment("prefill", 11.0, 13.0),
        Segment("decode", 13.0, 17.0),
    ]


def test_request_without_server_times_waits_for_its_first_token() -> None:
    request = make_request("lru", "a", 0, 10.0, 3.0, reply_s=4.0)
    kinds = [Segment("waiting for first token", 10.0, 13.0), Segment("decode", 13.0, 17.0)]
    assert list(split_request(request)) == kinds


def test_failed_request_waits_until_its_end() -> None:
    request = make_request("lru", "a", 0, 10.0, 3.0, error="refused")
    assert list(split_request(request)) == [Segment("waiting for first token", 10.0, 13.0)]


def test_lanes_stand_by_start_and_open_jobs_are_interrupted() -> None:
    (run,) = run_of(
        make_request("lru", "late", 0, 5.0, 1.0),
        make_request("lru", "early", 0, 1.0, 1.0),
        make_tool_call("lru", "early", 0, 2.0, 7.0),
        make_job("lru", "late", 5.0, 6.0),
    ).values()
    assert [(lane.job, lane.status, lane.end_s) for lane in build_lanes(run)] == [
        ("early", "interrupted", 9.0),
        ("late", "finished", 6.0),
    ]


def test_forty_lanes_are_chosen_evenly_and_the_title_says_so() -> None:
    policies = run_of(*make_events("lru", 120))
    lanes = build_lanes(policies["lru"])
    chosen = choose_lanes(lanes)
    assert len({lane.job for lane in chosen}) == MAX_LANES
    assert (chosen[0], chosen[-1]) == (lanes[0], lanes[-1])
    axes = plot_swim_lanes(policies).axes[0]
    assert axes.get_title(loc="left") == "lru: 40 of 120 jobs, evenly chosen"
    assert len(axes.get_yticklabels()) == MAX_LANES


def ask(job: str, sent_s: float, thread: str | None = None) -> RequestEvent:
    return make_request("lru", job, 0, sent_s, 1.0, thread=thread)


def test_lanes_of_sub_agents_stand_beneath_their_job() -> None:
    call = make_tool_call("lru", "a", 0, 3.0, 2.0).model_copy(update={"thread": "find"})
    events = [ask("a", 0.0), ask("b", 1.0), ask("a", 4.0, "test"), ask("a", 2.0, "find"), call]
    policies = run_of(*events, make_job("lru", "a", 0.0, 6.0), make_job("lru", "b", 1.0, 2.0))
    told = [(lane.job, lane.thread, lane.status, lane.end_s) for lane in build_lanes(policies["lru"])]
    assert told == [
        ("a", None, "finished", 6.0),
        ("a", "find", "finished", 5.0),
        ("a", "test", "finished", 5.0),
        ("b", None, "finished", 2.0),
    ]
    labels = [label.get_text() for label in plot_swim_lanes(policies).axes[0].get_yticklabels()]
    assert labels == ["a", "– find", "– test", "b"]


def test_of_families_fewer_jobs_are_chosen_and_kept_whole() -> None:
    main = [ask(f"job {number}", 10.0 * number) for number in range(30)]
    agents = [ask(each.job, each.sent_s + number, f"agent {number}") for each in main[::2] for number in range(20)]
    policies = run_of(*main, *agents)
    chosen = choose_lanes(build_lanes(policies["lru"]))
    assert MAX_LANES - MAX_AGENT_LANES <= len(chosen) <= MAX_LANES
    sizes = Counter(lane.job for lane in chosen)
    assert {sizes[each.job] for each in main[::2]} == {0, 1 + MAX_AGENT_LANES}
    assert [lane.thread for lane in chosen[:3]] == [None, "agent 0", "agent 1"]
    title = plot_swim_lanes(policies).axes[0].get_title(loc="left")
    assert title == f"lru: {len(sizes)} of 30 jobs, evenly chosen"


def test_lanes_legend_holds_only_what_is_shown() -> None:
    figure = plot_swim_lanes(run_of(*make_events("lru", 6, split=False, failing=1.0)))
    assert legend_texts(figure) == ["waiting for first token", "decode", "tool", "job failed"]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_axes_say_their_unit(plot: Plot) -> None:
    axes = plot.draw(run_of(*make_events("lru", 3))).axes[0]
    assert re.search(r"\(.+\)$", axes.get_xlabel())
    assert axes.get_ylabel()


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_ten_long_names_stay_inside_the_figure(plot: Plot) -> None:
    names = [f"a run of last week: a policy with a rather long name and number {index}" for index in range(10)]
    figure = plot.draw(run_of(*(event for name in names for event in make_events(name, 3))))
    figure.draw_without_rendering()
    # The legend takes its room below the plot, not from it.
    assert figure.axes[0].bbox.height / figure.dpi > (3.0 if len(figure.axes) == 1 else 0.7)
    for text in [*figure.legends, *(axes.title for axes in figure.axes)]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_no_data_still_makes_a_plot(plot: Plot) -> None:
    svg = render_svg(plot.draw({"lru": PolicyRun()}), "empty")
    assert svg.startswith("<svg")


def test_marks_tell_28_policies_apart() -> None:
    marks = [pick_mark(index) for index in range(28)]
    assert len({(mark.colour, mark.line_style) for mark in marks}) == 28
    assert len({mark.marker for mark in marks[:9]}) == 9


def test_svg_ids_are_unique_among_plots_and_references_resolve() -> None:
    policies = run_of(*make_events("lru", 5), *make_events("agentcache", 5))
    page = "".join(render_svg(plot.draw(policies), plot.name) for plot in PLOTS)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    references = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert references
    assert {first or second for first, second in references} <= set(ids)


def test_svg_shows_names_as_text_in_the_colours_of_the_page() -> None:
    svg = render_svg(plot_latency_cdf(run_of(make_job("_$a$ <b>", "a", 0.0, 1.0))), "latency")
    assert ">_$a$ &lt;b&gt;</text>" in svg
    assert "currentColor" in svg
    assert "var(--grid)" in svg
    assert "<metadata" not in svg


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(matplotlib.rcParams)
    render_svg(plot_ttft(run_of(*make_events("lru", 2))), "ttft")
    assert dict(matplotlib.rcParams) == before


def test_shorten_keeps_both_ends() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcde…hijk"
