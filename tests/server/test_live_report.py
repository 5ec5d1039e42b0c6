from __future__ import annotations

import asyncio
import re
import threading
from typing import Any
from urllib.parse import quote

import pytest
from made_engine import (
    FakeCore,
    connect,
    make_engine,
    make_job,
    make_pin,
    make_runtime,
    make_summary,
    make_tiered_engine,
    make_turn,
    on_engine,
    two_turns,
)

from agentcache.engine.constants import JOBS_METHOD
from agentcache.engine.job_summary import AgentView
from agentcache.engine.observe.stats import MAX_TURNS
from agentcache.engine.rpc.snapshot import RequestCounts
from agentcache.engine.views import Histogram, JobView, PinCounts
from agentcache.errors import ServerError
from agentcache.server import job_reader, live_report
from agentcache.server.job_reader import JobReader
from agentcache.server.live_content import build_tiles, list_ended_jobs, list_open_jobs, list_tools
from agentcache.server.live_report import MIN_INTERVAL_S, REST, LiveReport
from agentcache.server.live_run import name_jobs
from agentcache.server.snapshot_reader import Reading

HOSTILE = '"><script>alert(1)</script>'
EMPTY = Histogram(bounds=(1.0,), buckets=(0,), count=0, total=0.0)
NO_PINS = PinCounts(live=0, blocks=0, budget_blocks=500, began=0, ended={}, held_s=0.0)


def test_tiles_add_up_all_engines() -> None:
    tiles = {tile.name: (tile.value, tile.detail) for tile in build_tiles([make_engine(0), make_engine(1)])}
    assert tiles["Jobs"][0] == "6"
    assert tiles["Jobs ended"] == ("12", "10 job over, 2 expired")
    assert tiles["Answer latency, mean"] == ("3.25 s", "question to answer, tools included; 16 answers")
    assert tiles["Job latency, mean"] == ("6.75 s", "3.50 turns a job")
    assert tiles["Token hit rate"] == ("75.0 %", "15,000 of 20,000 prompt tokens")
    assert tiles["Prefill saved against LRU"] == (
        "6.50 s",
        "estimate, against a shadow LRU of the same requests: it would have hit 40.0 % of the prompt tokens, 64.0 % "
        "were reused",
    )
    assert tiles["Pins"] == ("4", "80 of 1,000 blocks that they may keep")
    assert tiles["Pins ended"] == ("14", "12 returned, 2 job over")
    assert tiles["Blocks evicted"] == ("16", "16 capacity; 2.50 s after their last use")
    assert list_tools([make_engine(0), make_engine(1)]).rows == [
        ("(human)", "2", "30.0", "60.0"),
        ("search", "8", "1.50", "12.0"),
    ]


def test_jobs_that_are_over_are_listed_with_what_they_took() -> None:
    over = [
        make_job(name, make_turn(0, 10.0), is_over=True, now_s=now_s, summary=make_summary(**changes))
        for name, now_s, changes in (("old", 90.0, {}), ("new", 50.0, {"ttft_mean_s": None, "waits_s": {}}))
    ]
    listing = list_ended_jobs(name_jobs([on_engine(job) for job in (*over, make_job("open", make_turn(0, 10.0)))]))
    assert listing.rows == [
        ("new", "job over", "2", "7.00", "–", "200", "64.0 %", "22", "–", "0.250"),
        ("old", "job over", "2", "7.00", "1.00", "200", "64.0 %", "22", "1.50 pins", "0.250"),
    ]
    assert listing.links == ["jobs/new", "jobs/old"]


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"saved_s": 0.25, "lost_s": 1.5}, "−1.25 s"),
        ({"saved_s": 0.0, "lost_s": 0.0}, "0 s"),
        ({"prompt_tokens": 0, "saved_s": 0.0, "lost_s": 0.0}, "–"),
    ],
)
def test_a_loss_against_lru_is_shown_as_one(changes: dict[str, Any], value: str) -> None:
    comparison = make_engine().comparison
    assert comparison is not None
    tiles = build_tiles([make_engine(comparison=comparison.model_copy(update=changes))])
    assert [tile.value for tile in tiles if "LRU" in tile.name] == [value]


def test_without_a_shadow_lru_nothing_is_said_of_it() -> None:
    assert not [tile for tile in build_tiles([make_engine(comparison=None)]) if "LRU" in tile.name]


def test_without_pins_there_are_no_tiles_of_pins() -> None:
    bare = make_engine(runtime=make_runtime(pins=NO_PINS.model_copy(update={"budget_blocks": 0})))
    assert not [tile for tile in build_tiles([bare]) if "Pin" in tile.name]


def test_open_jobs_say_what_they_do_and_what_is_pinned_for_them() -> None:
    away = make_job("away", make_turn(0, 0.0), pins=(make_pin(0, 2.0), make_pin(0, 1.0, ended_s=1.5)), now_s=7.0)
    human = make_job("human", make_turn(0, 0.0, tools=()), now_s=33.0)
    busy = make_job("busy", make_turn(0, 0.0), running=1, waits_for=(), now_s=2.0)
    over = make_job("over", make_turn(0, 0.0), is_over=True)
    listing = list_open_jobs(name_jobs([on_engine(view) for view in (human, over, busy, away)]))
    assert [row[:2] + row[-1:] for row in listing.rows] == [
        ("busy", "in the engine", "–"),
        ("away", "waits for search, for 5.00 s", "11 blocks, 5.00 s more"),
        ("human", "waits for its human, for 31.0 s", "–"),
    ]


def make_agent(name: str, parent: str | None = None, **changes: Any) -> AgentView:
    found: dict[str, Any] = {"name": name, "parent": parent, "began_s": 1.0, "turns": 2, "state": "over"}
    return AgentView(**found | changes)


def test_sub_agents_stand_beneath_those_that_began_them() -> None:
    agents = (
        make_agent("deep", "find", state="waiting"),
        make_agent("find", state="running"),
        make_agent("lost", "gone"),
    )
    views = make_job("family", make_turn(0, 0.0), agents=agents), make_job("alone", make_turn(0, 0.0), now_s=9.0)
    listing = list_open_jobs(name_jobs([on_engine(view) for view in views]))
    assert [row[:3] for row in listing.rows] == [
        ("family", "waits for search, for 4.00 s", "1"),
        ("\u2003find", "in the engine", "2"),
        ("\u2003\u2003deep", "waiting", "2"),
        ("\u2003lost", "over", "2"),
        ("alone", "waits for search, for 7.00 s", "1"),
    ]
    assert listing.links == ["jobs/family", "", "", "", "jobs/alone"]
    over = make_job("family", make_turn(0, 0.0), agents=agents, is_over=True, summary=make_summary(turns=8))
    assert list_ended_jobs(name_jobs([on_engine(over)])).rows[0][2] == "8 (6 by 3 sub-agents)"


def test_of_many_sub_agents_the_first_are_listed() -> None:
    agents = tuple(make_agent(f"agent {number}", state="waiting") for number in range(64))
    job = make_job("family", make_turn(0, 0.0), agents=agents)
    listing = list_open_jobs(name_jobs([on_engine(job)]))
    assert [row[0] for row in listing.rows[-2:]] == ["\u2003agent 19", "\u200344 more"]
    assert len(listing.rows) == len(listing.links) == 22


def get_page(*jobs: JobView, path: str = "/agentcache/report", **changes: Any) -> str:
    with connect(FakeCore((make_engine(**changes), jobs))) as client:
        answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    return answer.text


def test_the_page_shows_jobs_loads_nothing_else_and_escapes_text() -> None:
    jobs = [two_turns(f"job {number}", 10.0 * number, is_over=number < 3) for number in range(4)]
    hostile = make_job(HOSTILE, make_turn(0, 1.0, tools=(HOSTILE,)))
    page = get_page(*jobs, hostile)
    for text in (
        "The latest 5 jobs",
        "Job latency, P50 (s)",
        "What each job did",
        "waits for its human",
        "Policy agentcache",
        '<p class="headline">Too few jobs: 9 so far, and 40 are the least that tell; pressure below 0.1.</p>',
        '<dt>Prefill saved against LRU</dt><dd class="value">3.25 s</dd>',
    ):
        assert text in page
    assert page.count("<svg ") == 5
    assert "time since the policy" not in page
    assert "Makespan" not in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    links = [link for link in re.findall(r'(?:src|href)="([^"]*)"', page) if not link.startswith(("#", "data:"))]
    assert links == ["jobs/job%203", f"jobs/{quote(HOSTILE, safe='')}"], "those that go on"


def test_without_jobs_the_page_says_so() -> None:
    bare = make_runtime(
        jobs=0,
        jobs_ended={},
        job_latency_s=EMPTY,
        answer_latency_s=EMPTY,
        job_turns=EMPTY,
        tools={},
        pins=NO_PINS,
        prompt_tokens=0,
        hit_tokens=0,
    )
    page = get_page(runtime=bare, evictions={}, requests=RequestCounts(running=0, waiting=0))
    assert "No job yet." in page
    assert "<svg" not in page
    assert "Jobs going on" not in page
    assert "headline" not in page.partition("</style>")[2]


def test_the_verdict_is_of_all_engines_and_of_jobs_under_way() -> None:
    jobs = [
        make_job("mine", make_turn(0, 1.0, prompt_tokens=8_000)),
        make_job("over", make_turn(0, 1.0, prompt_tokens=8_000), is_over=True),
    ]
    page = get_page(*jobs, runtime=make_runtime(jobs=50))
    assert "Keep it on: 24.0 % of the prompt tokens were cached that LRU would have lost; 4.0 % of the prompt" in page
    assert "computed again; pressure 0.5.</p>" in page


def test_a_job_in_its_first_request_has_a_row_and_no_plots() -> None:
    page = get_page(make_job("first", running=1))
    assert "<td>in the engine</td>" in page
    assert "<svg" not in page


@pytest.mark.parametrize(
    ("given", "seconds"), [("", 10), ("?refresh=2", 2), ("?refresh=3600", 3600), ("?refresh=0", 0)]
)
def test_it_loads_itself_again_as_often_as_it_is_told(given: str, seconds: int) -> None:
    found = re.findall(r'<meta http-equiv="refresh" content="(\d+)">', get_page(path=f"/agentcache/report{given}"))
    assert found == ([str(seconds)] if seconds else [])


@pytest.mark.parametrize("given", ["1", "-5", "3601"])
def test_another_refresh_is_refused(given: str) -> None:
    with connect(FakeCore((make_engine(), []))) as client:
        answer = client.get(f"/agentcache/report?refresh={given}")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("refresh: give seconds from 2 to 3600")


class Watched:
    """A report with a clock that stands still, and drawings that take the time they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.drawn: list[bool] = []
        self.core = FakeCore((make_engine(), [two_turns("mine", 1.0)]))
        self.report = LiveReport(JobReader(self.core.call), lambda: self.now_s, lambda: 0.0)
        build = live_report.build_values

        def note(*args: Any) -> Any:
            self.drawn.append(threading.current_thread() is threading.main_thread())
            self.now_s += took_s
            return build(*args)

        monkeypatch.setattr(live_report, "build_values", note)
        monkeypatch.setattr(live_report, "PLOTS", ())

    async def render(self, refresh_s: int = 10) -> str:
        return await self.report.render(Reading((make_engine(),), 0.0), refresh_s)


def test_it_is_drawn_in_a_thread_and_once_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)

    async def run() -> None:
        pages = await asyncio.gather(*(watched.render(seconds) for seconds in (2, 3, 0)))
        assert len(set(pages)) == 3
        assert watched.drawn == [False]
        assert watched.core.calls == [(JOBS_METHOD, 0, 32, MAX_TURNS)]
        watched.now_s += 0.9 * MIN_INTERVAL_S
        await watched.render()
        assert len(watched.drawn) == 1
        watched.now_s += 0.1 * MIN_INTERVAL_S
        await watched.render()
        assert len(watched.drawn) == 2

    asyncio.run(run())


def test_drawings_that_take_long_come_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, took_s=3.0)

    async def run() -> None:
        await watched.render()
        watched.now_s += REST * 3.0 - 0.1
        await watched.render()
        assert len(watched.drawn) == 1
        watched.now_s += 0.1
        await watched.render()
        assert len(watched.drawn) == 2

    asyncio.run(run())


def test_silent_engines_leave_the_last_page_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    monkeypatch.setattr(job_reader, "ANSWER_WAIT_S", 0.01)

    async def run() -> None:
        assert "did not answer" not in await watched.render()
        watched.core.is_silent = True
        watched.now_s += MIN_INTERVAL_S
        page = await watched.render()
        assert (
            "The engine did not answer within 0.01 s; try again. The figures are those of 1970-01-01 00:00:00 UTC."
            in page
        )
        assert 'http-equiv="refresh"' in page
        watched.core.is_silent = False
        watched.now_s += MIN_INTERVAL_S
        assert "did not answer" not in await watched.render()

    asyncio.run(run())


def test_engines_that_never_answered_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.core.failure = Exception("gone")

    async def run() -> None:
        # The second is not asked for anew, and says the same.
        for _ in range(2):
            with pytest.raises(ServerError, match="could not answer"):
                await watched.render()
        assert len(watched.core.calls) == 1

    asyncio.run(run())


def test_the_page_draws_why_prompts_were_not_cached() -> None:
    turns = [make_turn(0, 1.0, misses={"new": 90}), make_turn(1, 5.0, misses={"new": 10, "evicted": 40})]
    page = get_page(make_job("mine", *turns))
    (drawn,) = re.findall(r"Why prompts were not cached</h2>(.*?)</figure>", page, re.DOTALL)
    assert ("evicted" in drawn, "behind a gap" in drawn) == (True, False)
    nothing = get_page(make_job("mine", make_turn(0, 1.0)))
    assert "no turn missed anything" in nothing


def test_tiles_tell_places_where_there_are_two_caches() -> None:
    tiles = {
        tile.name: (tile.value, tile.detail) for tile in build_tiles([make_tiered_engine(0), make_tiered_engine(1)])
    }
    assert tiles["Hit on the GPU, and fetched"] == ("70.0 % + 5.0 %", "1,000 prompt tokens came from the CPU cache")
    assert tiles["Tokens evicted and missed"] == ("800", "480 evicted, 192 never chosen, 128 not worth a copy")
    of_vllm = make_engine(runtime=make_runtime(hits={"gpu": 7_000, "host": 0, "disk": 250, "elsewhere": 250}))
    tiles = {tile.name: (tile.value, tile.detail) for tile in build_tiles([of_vllm])}
    text = "0 prompt tokens came from the CPU cache, 250 from disk, 250 from elsewhere"
    assert tiles["Hit on the GPU, and fetched"] == ("70.0 % + 5.0 %", text)
    assert "Tokens evicted and missed" not in tiles
    assert not {"Hit on the GPU, and fetched", "Tokens evicted and missed"} & {
        tile.name for tile in build_tiles([make_engine()])
    }
