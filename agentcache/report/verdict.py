"""Says in one sentence whether to switch a policy on, from plain values (docs/compare.md#the-verdict)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Jobs that come one after the other share queue and cache, and are late together. So the interval is of ten groups in a
# row (batch means): in five simulated BFCL runs it is twice as wide as one that takes each job for itself.
_GROUPS = 10
# Student's t for 95 %, nine degrees of freedom.
_QUANTILE = 2.262
# In those runs the interval is up to ±20 points for the first 20 jobs, ±12 for 40, ±7 for 80.
LEAST_JOBS = 4 * _GROUPS
# An interval as narrow as this tells no gain from one that would matter.
_NARROW = 0.1
# Two runs of the same thing differ by 3 % in the mean (results/simulator-error.jsonl), and by more past the knee.
_LEAST_CHANGE = 0.05
# First tokens later than this are for the operator to weigh; it is also how far off a simulated TTFT P99 may be.
_LATE = 1.5
# How far a simulated mean job latency was from a GPU's, at most: single runs of Llama-3.1-8B and BFCL at the knee and
# past it; the worst has blocks of 128 tokens (results/simulator-error.jsonl).
SIMULATOR_ERROR = 0.14
# Of the prompt tokens: less is as good as nothing.
_LEAST_LOST = 0.01
# A CPU cache of so many times the contexts of all jobs at once holds what they want again: a rule of thumb that others
# have measured.
_CPU_SHARE = 1.4
_WEIGH = "Weigh it"
# They evict as stock vLLM does.
_STOCK = ("vllm", "lru", "observe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two policies on the same jobs, whose latencies under the base and under the policy stand in the order they came.

    `fits`: whether the base lost nothing that was wanted again. `pressure` is the working set over all caches, as
    `find_working_set` has it.
    """

    base: str
    policy: str
    latencies_s: Sequence[tuple[float, float]]
    ttft_p99_s: tuple[float | None, float | None]
    fits: bool
    pressure: float | None
    simulated: bool = False


def judge(found: Comparison) -> str:
    """Say whether to switch the policy on, with the figures that this rests on."""
    jobs = len(found.latencies_s)
    if jobs < LEAST_JOBS:
        fits = "; everything fits" if found.fits else ""
        few = f"{jobs} under {found.base} and {found.policy}, and {LEAST_JOBS} are the least that tell{fits}"
        return f"Too few jobs: {few}{_tell_pressure(found.pressure)}."
    change, half = find_change(found.latencies_s)
    before, after = found.ttft_p99_s
    late = after / before if before and after is not None else None
    opening, closing = _decide(found, change, half, late)
    error = f", simulator ±{100 * SIMULATOR_ERROR:.0f}" if found.simulated else ""
    spread = f"{_sign(change - half)} to {_sign(change + half)} by the spread of these jobs{error}"
    but = " but" if opening == _WEIGH else ""
    return (
        f"{opening}: jobs {_sign(change)} % ({spread}),{but} P99 first token {_tell_ratio(late)}, from {jobs:,} jobs, "
        f"{found.policy} against {found.base}{_tell_pressure(found.pressure)}.{closing}"
    )


def _decide(found: Comparison, change: float, half: float, late: float | None) -> tuple[str, str]:
    """Return how the verdict begins, and what to do then, if that is not told by it."""
    is_sooner = change + half < 0 and change <= -_LEAST_CHANGE
    if is_sooner and not (found.simulated and -change < SIMULATOR_ERROR):
        return _WEIGH if late is not None and late > _LATE else "Switch on", ""
    if found.fits:
        return "Do not: everything fits", ""
    if is_sooner:
        return "Perhaps", " The simulator may be off by more: replay the jobs on a GPU."
    if change - half > 0 and change >= _LEAST_CHANGE:
        return "Do not: jobs end later", ""
    if half <= _NARROW:
        return "Do not: no gain beyond chance", ""
    enough = math.ceil(len(found.latencies_s) * (half / _NARROW) ** 2 / 10) * 10
    return "Too few jobs", f" About {enough:,} would tell."


def find_change(latencies_s: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return by what share the mean changed, and half of that share's 95 % interval, over jobs in the order they came.

    The interval is by the spread of these jobs, by groups in a row; that of other jobs, or seeds, may be wider.
    """
    count = len(latencies_s)
    parts = [latencies_s[count * place // _GROUPS : count * (place + 1) // _GROUPS] for place in range(_GROUPS)]
    groups = [tuple(map(sum, zip(*part, strict=True))) for part in parts]
    before, after = map(sum, zip(*groups, strict=True))
    # Of a ratio of sums: what each group has beside the mean change.
    rest = sum((ours - after / before * base) ** 2 for base, ours in groups)
    return after / before - 1, _QUANTILE * math.sqrt(rest * _GROUPS / (_GROUPS - 1)) / before


def judge_server(engines: Sequence[Mapping[str, Any]], contexts: int) -> str | None:
    """Say whether agentcache is of use to a server, as far as its own policy alone shows; None if it follows no jobs.

    `engines` are those of `GET /agentcache/state`, whose jobs under way have contexts of so many tokens now.
    """
    runtimes = [engine["runtime"] for engine in engines if engine.get("runtime")]
    prompt = sum(each["prompt_tokens"] for each in runtimes)
    if not prompt:
        return None
    blocks = [engine["blocks"] | {"host": (engine.get("tier") or {}).get("total", 0)} for engine in engines]
    room = sum((each["total"] + each["host"]) * each["tokens_per_block"] for each in blocks)
    pressure = _tell_pressure(contexts / room if room else None)
    jobs = sum(each["jobs"] + sum(each["jobs_ended"].values()) for each in runtimes)
    if jobs < LEAST_JOBS:
        return f"Too few jobs: {jobs} so far, and {LEAST_JOBS} are the least that tell{pressure}."
    lost = sum(each["missed_tokens"].get("evicted", 0) for each in runtimes) / prompt
    again = f"{100 * lost:.1f} % of the prompt tokens were evicted and computed again{pressure}"
    compared = [engine["comparison"] for engine in engines if engine.get("comparison")]
    seen = sum(each["prompt_tokens"] for each in compared) or 1
    regained = sum(each["reused_tokens"] - each["lru_tokens"] for each in compared) / seen
    is_on = engines[0]["policy"] not in _STOCK
    if is_on and regained >= _LEAST_LOST:
        return f"Keep it on: {100 * regained:.1f} % of the prompt tokens were cached that LRU would have lost; {again}."
    # Where ours loses nothing, stock vLLM may.
    if lost < _LEAST_LOST and (compared or not is_on):
        return f"{'It may be off' if is_on else 'Do not switch on'}: everything fits; {again}."
    return f"Worth a plan: {again}: serve with --record FILE, then agentcache plan FILE."


def tell_capacity(working_set: int, cache_tokens: int) -> str:
    """Say what the pressure is made of and, where more is wanted than fits, which CPU cache would do."""
    told = f"The contexts of all jobs at once came to {working_set:,} tokens, the caches hold {cache_tokens:,}."
    if working_set <= cache_tokens:
        return told
    enough = f"{float(f'{_CPU_SHARE * working_set:.2g}'):,.0f}"
    return (
        f"{told} A CPU cache of about {enough} tokens would do ({_CPU_SHARE} times these contexts, as others measured)."
    )


def _tell_pressure(pressure: float | None) -> str:
    # 0.0 reads as none.
    return "" if pressure is None else f"; pressure {f'{pressure:.1f}' if pressure >= 0.05 else 'below 0.1'}"


def _sign(share: float) -> str:
    """Write in percent, with a sign."""
    percent = round(100 * share)
    return f"{percent:+d}".replace("-", "−") if percent else "0"


def _tell_ratio(ratio: float | None) -> str:
    if ratio is None:
        return "not known"
    return f"{ratio:.2f} times" if ratio >= _LATE else f"{_sign(ratio - 1)} %"
