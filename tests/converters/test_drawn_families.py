"""Drawn families: what is published of them holds, and a seed gives the same ones."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from convert import convert

from agentcache.errors import InputError
from tool_runtime.agent.job import Context, Job
from workloads.recording.sessions import load_sessions

HEAD_BLOCKS = 6000 // 64


def draw(out: Path, *options: str, jobs: int = 20, seed: int = 0) -> list[Job]:
    path = out / "f.jsonl"
    convert(["families", "--out", str(path), "--jobs", str(jobs), "--seed", str(seed), *options])
    return load_sessions(path, jobs=None, max_context=None, max_gap_s=None).jobs


def contexts(job: Job) -> list[Context]:
    return [turn.context for turn in job.turns if turn.context is not None]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """Draw short sessions, enough of them to check shares."""
    return draw(tmp_path_factory.mktemp("drawn"), "--turns=12", "--tool-latency=0.5", jobs=300)


def test_shares_and_medians_are_the_published(drawn: list[Job]) -> None:
    """By binomial bounds of three standard deviations; a median of few whole numbers is off by one at most."""
    with_agents = [job for job in drawn if job.agents]
    deviation = math.sqrt(0.44 * 0.56 / len(drawn))
    assert len(with_agents) / len(drawn) == pytest.approx(0.44, abs=3 * deviation + 0.02)
    groups = Counter((job.id, agent.start.turn) for job in drawn for agent in job.agents if agent.start)
    several = [size for size in groups.values() if size > 1]
    assert 5 <= np.median(several) <= 9
    assert 25 <= np.percentile(several, 90) <= 75
    lasting = [sum(len(agent.turns) > 1 for agent in job.agents) for job in with_agents]
    assert 3 <= np.median([number for number in lasting if number]) <= 5


def test_groups_are_awaited_or_all_run_on(drawn: list[Job]) -> None:
    waits = {}
    for job in drawn:
        for agent in job.agents:
            assert agent.start is not None
            assert (agent.start.parent, agent.start.delay_s) == (None, pytest.approx(0.0))
            waits.setdefault((job.id, agent.start.turn), set()).add(agent.start.is_awaited)
    last = {job.id: len(job.turns) - 1 for job in drawn}
    assert all(len(each) == 1 for place, each in waits.items() if place[1] < last[place[0]])
    share = sum(each == {False} for each in waits.values()) / len(waits)
    assert share == pytest.approx(0.2, abs=0.07)


def test_all_share_the_head_and_a_fork_all_of_its_parent(drawn: list[Job]) -> None:
    forks = others = 0
    for job in drawn:
        for agent in job.agents:
            assert agent.start is not None
            first, parent = contexts(agent)[0], contexts(job)[agent.start.turn]
            assert first.blocks[:HEAD_BLOCKS] == parent.blocks[:HEAD_BLOCKS] == tuple(range(1, HEAD_BLOCKS + 1))
            shared = sum(one == other for one, other in zip(first.blocks, parent.blocks, strict=False))
            if shared >= (parent.tokens // 64):
                forks += 1
            else:
                assert shared == HEAD_BLOCKS
                others += 1
    assert 0.1 < forks / (forks + others) < 0.4


def test_a_context_grows_until_it_is_compacted(drawn: list[Job]) -> None:
    compacted = 0
    for job in drawn:
        for before, after in pairwise(contexts(job)):
            if after.tokens > before.tokens:
                assert after.blocks[: before.tokens // 64] == before.blocks[: before.tokens // 64]
                continue
            # The summarising call had all of it, over the limit; what follows is the head and the summary.
            compacted += 1
            assert before.tokens > 32_000
            assert before.reply_tokens == 2000
            assert after.tokens == 6000 + 2000
            assert [*after.blocks[:HEAD_BLOCKS]] == [*range(1, HEAD_BLOCKS + 1)]
            assert not {*after.blocks[HEAD_BLOCKS:]} & {*before.blocks}
    assert compacted


def test_people_pause_with_a_long_tail(drawn: list[Job]) -> None:
    pauses = [turn.pause_s for job in drawn for turn in job.turns[:-1] if not turn.tool_calls and turn.pause_s > 0]
    assert np.median(pauses) == pytest.approx(96.0, rel=0.25)
    assert np.percentile(pauses, 90) > 3 * np.median(pauses)
    assert max(pauses) <= 900.001


def test_a_seed_gives_the_same_sessions_however_many(tmp_path: Path) -> None:
    first, more = (draw(tmp_path, jobs=jobs) for jobs in (3, 6))
    other = draw(tmp_path, jobs=3, seed=1)
    assert more[:3] == first
    assert [len(job.turns) for job in other] != [len(job.turns) for job in first]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--children-share=1.5", "--children-share 1.5: give a share, 0 to 1"),
        ("--burst=0", "--burst 0: give at least 1"),
        ("--burst-p90=3", "--burst-p90 3: give at least --burst, 7"),
        ("--limit=9000", "--limit 9000: give at least twice --head and --summary together"),
        ("--pause-s=inf", "--pause-s inf: give a number, 0 or more"),
        ("--jobs=0", "--jobs 0: give at least 1"),
        ("--rate=0", "--rate 0: give a number above 0, jobs per second"),
        ("--tool-latency=soon", "--tool-latency soon: 'soon' is not a number"),
    ],
)
def test_bad_options_are_refused_by_their_flag(tmp_path: Path, option: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        draw(tmp_path, option)
    assert str(error.value).startswith(text)
    assert not [*tmp_path.iterdir()]
