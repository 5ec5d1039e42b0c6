"""Reads LooGLE and LongBench as conversations about long documents, paced as the AsymCache paper paces them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from agentcache.errors import InputError
from converters.documents import Exchange, Thread, read_threads
from converters.recorded import check_options
from tool_runtime.agent.job import Job, Message, Turn
from workloads.filler import Encode, write_filler
from workloads.loaded import check_enough

# AsymCache, section "Workloads".
PAPER_CV = 0.25


@dataclass(frozen=True, slots=True)
class _Session:
    opening: str
    exchanges: Sequence[Exchange]


def read_conversations(
    path: Path,
    *,
    jobs: int | None,
    rate: float,
    cv: float = PAPER_CV,
    dispersion: float,
    turns: int,
    least_turns: int | None = None,
    reply_tokens: int | None = None,
    encode: Encode,
    scale: float,
    seed: int,
) -> list[Job]:
    """Load `jobs` conversations of at most `turns` questions each; None asks every question of the file once.

    First turns come as a Gamma process of `rate` a second with coefficient of variation `cv`. The pauses behind the
    replies are drawn from another with the same cv and a mean of `dispersion / rate` seconds. `scale`, at most 1, is
    the share of each document that is kept. With `least_turns` each conversation ends after a number of turns drawn
    evenly from there to `turns`. Replies that are shorter than `reply_tokens` go on with text of ours until
    they have as many, within 1 %: recorded answers are far shorter than what the paper's models wrote.
    Job n is the same for every `jobs` above n. Raises InputError.
    """
    _check(jobs, scale, turns, least_turns)
    _check_times(dispersion=dispersion, rate=rate, cv=cv)
    sessions = _choose_sessions(path, jobs, scale, turns)
    count = len(sessions)
    gaps = np.random.default_rng(seed).gamma(1 / cv**2, cv**2 / rate, count - 1)
    arrivals = [0.0, *np.cumsum(gaps).tolist()]
    built = []
    for number, job_seed in enumerate(np.random.SeedSequence(seed).spawn(count)):
        rng = np.random.default_rng(job_seed)
        if least_turns is not None:
            sessions[number] = _shorten(sessions[number], int(rng.integers(least_turns, turns, endpoint=True)))
        pauses_s = rng.gamma(1 / cv**2, cv**2 * dispersion / rate, len(sessions[number].exchanges) - 1)
        if reply_tokens is not None:
            sessions[number] = _lengthen_replies(sessions[number], reply_tokens, encode, rng)
        built.append(_build_job(number, sessions[number], arrivals[number], pauses_s.tolist()))
    return built


def _check(jobs: int | None, scale: float, turns: int, least_turns: int | None) -> None:
    check_options(jobs, scale)
    if scale > 1:
        raise InputError(f"--scale {scale:g}: give at most 1, documents can only be cut")
    if turns < 1:
        raise InputError(f"--turns {turns}: give at least 1")
    if least_turns is not None and not 1 <= least_turns <= turns:
        raise InputError(f"--least-turns {least_turns}: give from 1 to --turns, {turns}")


def _check_times(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"--{name} {value:g}: give a number above 0")


def _choose_sessions(path: Path, jobs: int | None, scale: float, turns: int) -> list[_Session]:
    """Choose one for each of the `jobs`. The first ones ask each question of the file once."""
    threads = read_threads(path, scale)
    rounds = [list(_open_sessions(threads, turns, offset)) for offset in range(turns)]
    check_enough(jobs, sum(map(len, rounds)), path)
    return list(islice(chain.from_iterable(rounds), len(rounds[0]) if jobs is None else jobs))


def _open_sessions(threads: Sequence[Thread], turns: int, offset: int) -> Iterator[_Session]:
    """Open windows of at most `turns` exchanges from `offset` on; the windows of one document stand far apart.

    Offset 0 has each exchange once. No two windows of the offsets below `turns` begin with the same exchange.
    """
    longest = max(len(thread.exchanges) for thread in threads)
    for start in range(offset, longest, turns):
        for thread in threads:
            if start < len(thread.exchanges):
                yield _Session(thread.opening, thread.exchanges[start : start + turns])


def _shorten(session: _Session, turns: int) -> _Session:
    return replace(session, exchanges=session.exchanges[:turns])


def _lengthen_replies(session: _Session, tokens: int, encode: Encode, rng: np.random.Generator) -> _Session:
    def lengthen(answer: str) -> str:
        more = write_filler(tokens, encode, rng, wrap=lambda text: f"{answer} {text}")
        return f"{answer} {more}" if more else answer

    return replace(session, exchanges=[replace(one, answer=lengthen(one.answer)) for one in session.exchanges])


def _write_message(exchange: Exchange, opening: str) -> Message:
    parts = (opening, exchange.document, exchange.question)
    return {"role": "user", "content": "\n\n".join(part for part in parts if part)}


def _build_job(number: int, session: _Session, arrival_s: float, pauses_s: Sequence[float]) -> Job:
    first, *others = session.exchanges
    turns = [
        Turn(answered.answer, pause_s=pause_s, said=(_write_message(asked, ""),))
        for answered, asked, pause_s in zip(session.exchanges[:-1], others, pauses_s, strict=True)
    ]
    last = Turn(session.exchanges[-1].answer)
    return Job(
        f"session-{number}", (_write_message(first, session.opening),), turns=(*turns, last), arrival_s=arrival_s
    )
