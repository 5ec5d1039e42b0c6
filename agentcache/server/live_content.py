"""Prepares what the live report shows beside tables and plots: counts, running jobs, and prompts that changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

from agentcache.engine.job_summary import AgentView, JobSummary
from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.engine.views import (
    ChangeText,
    ChangeView,
    ComparisonCounts,
    Histogram,
    PinCounts,
    RuntimeCounts,
    ToolCounts,
)
from agentcache.front_end.client_sessions import find_job_path
from agentcache.report.content import MAX_LISTED, Listing
from agentcache.report.job_rows import COLUMNS, JobFigures
from agentcache.report.table import NO_DATA, format_number, show_share
from agentcache.server.live_run import NamedJob, shorten_session

_CHANGE_COLUMNS = ("Job", "Turn", "Token", "Message", "What changed")
_TEXT_COLUMNS = ("Text before it", "It was", "It is")
# An em space, which pages keep at the beginning of a cell.
_INDENT = "\u2003"


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure, with a line that explains it."""

    name: str
    value: str
    detail: str


def build_tiles(engines: Sequence[EngineSnapshot]) -> list[Tile]:
    """Add up all engines."""
    runtimes = [engine.runtime for engine in engines if engine.runtime is not None]
    compared = [engine.comparison for engine in engines if engine.comparison is not None]
    return [
        *_tiles_of_jobs(engines, runtimes),
        *_tiles_of_tokens(runtimes),
        *_tiles_of_comparison(compared),
        *_tiles_of_blocks(engines, runtimes),
    ]


def _tiles_of_jobs(engines: Sequence[EngineSnapshot], runtimes: Sequence[RuntimeCounts]) -> Iterator[Tile]:
    yield Tile("Jobs", f"{sum(one.jobs for one in runtimes):,}", "not over, as far as is known")
    ended = sum(sum(one.jobs_ended.values()) for one in runtimes)
    yield Tile("Jobs ended", f"{ended:,}", _list_causes(one.jobs_ended for one in runtimes))
    answers, mean = _add_up([one.answer_latency_s for one in runtimes])
    detail = f"question to answer, tools included; {answers:,} answers" if answers else "no answer yet"
    yield Tile("Answer latency, mean", mean, detail)
    # Jobs that ended without an answered turn have no latency.
    timed, mean = _add_up([one.job_latency_s for one in runtimes])
    turns = sum(one.job_turns.total for one in runtimes)
    detail = f"{format_number(turns / timed)} turns a job" if timed else "no job with an answer has ended"
    yield Tile("Job latency, mean", mean, detail)
    waiting = sum(engine.requests.waiting for engine in engines)
    yield Tile(
        "Requests running", f"{sum(engine.requests.running for engine in engines):,}", f"{waiting:,} more are waiting"
    )


def _add_up(latencies: Sequence[Histogram]) -> tuple[int, str]:
    """Return how many there are, and their mean."""
    count = sum(one.count for one in latencies)
    return count, f"{format_number(sum(one.total for one in latencies) / count)} s" if count else NO_DATA


def _tiles_of_tokens(runtimes: Sequence[RuntimeCounts]) -> Iterator[Tile]:
    prompt, hit, recomputed = (
        sum(getattr(one, name) for one in runtimes) for name in ("prompt_tokens", "hit_tokens", "recomputed_tokens")
    )
    yield Tile(
        "Token hit rate",
        show_share(hit, prompt),
        f"{hit:,} of {prompt:,} prompt tokens" if prompt else "no prompt yet",
    )
    yield from _tiles_of_places(prompt, runtimes)
    share = f"{show_share(recomputed, prompt)} of the prompt tokens" if prompt else "no prompt yet"
    yield Tile("Tokens recomputed", f"{recomputed:,}", share)
    missed = _list_causes(one.missed_tokens for one in runtimes)
    yield Tile("Tokens missed", f"{prompt - hit:,}", missed if prompt else "no prompt yet")
    found = [one.found_jobs for one in runtimes]
    yield Tile("Requests of jobs", f"{sum(sum(one.values()) for one in found):,}", _list_causes(found))


def _tiles_of_places(prompt: int, runtimes: Sequence[RuntimeCounts]) -> Iterator[Tile]:
    """Yield nothing where no engine has a second cache."""
    hits: Counter[str] = reduce(lambda sum_, one: sum_ + Counter(one.hits), runtimes, Counter())
    if not hits:
        return
    fetched = [f"{hits['host']:,} prompt tokens came from the CPU cache"]
    fetched += [f"{hits[place]:,} from {place}" for place in ("disk", "elsewhere") if hits[place]]
    yield Tile(
        "Hit on the GPU, and fetched",
        f"{show_share(hits['gpu'], prompt)} + {show_share(hits.total() - hits['gpu'], prompt)}",
        ", ".join(fetched),
    )
    # Only of a cache that is steered it is known how blocks were lost.
    if any(losses := [one.evicted_from for one in runtimes]):
        yield Tile("Tokens evicted and missed", f"{sum(sum(one.values()) for one in losses):,}", _list_causes(losses))


def _tiles_of_comparison(compared: Sequence[ComparisonCounts]) -> Iterator[Tile]:
    """Yield nothing if no engine has a shadow LRU."""
    if not compared:
        return
    prompt, reused, lru = (
        sum(getattr(one, name) for one in compared) for name in ("prompt_tokens", "reused_tokens", "lru_tokens")
    )
    saved_s = sum(one.saved_s - one.lost_s for one in compared)
    detail = (
        f"estimate, against a shadow LRU of the same requests: it would have hit {show_share(lru, prompt)} of the "
        f"prompt tokens, {show_share(reused, prompt)} were reused"
    )
    yield Tile(
        "Prefill saved against LRU",
        f"{'−' if saved_s < 0 else ''}{format_number(abs(saved_s))} s" if prompt else NO_DATA,
        detail if prompt else "no prompt yet",
    )


def _tiles_of_blocks(engines: Sequence[EngineSnapshot], runtimes: Sequence[RuntimeCounts]) -> Iterator[Tile]:
    lost = [found for engine in engines for found in engine.evictions.values()]
    blocks, age_s = sum(found.blocks for found in lost), sum(found.age_s for found in lost)
    causes = _list_causes({name: found.blocks for name, found in engine.evictions.items()} for engine in engines)
    yield from _tiles_of_pins([one.pins for one in runtimes if one.pins.budget_blocks])
    yield Tile(
        "Blocks evicted",
        f"{blocks:,}",
        f"{causes}; {format_number(age_s / blocks)} s after their last use" if blocks else causes,
    )
    used, total = (sum(getattr(engine.blocks, name) for engine in engines) for name in ("used", "total"))
    yield Tile("Blocks in use", f"{used:,}", f"of {total:,}")


def _tiles_of_pins(pins: Sequence[PinCounts]) -> Iterator[Tile]:
    """Yield nothing if the policy has no pins."""
    if not pins:
        return
    yield Tile(
        "Pins",
        f"{sum(one.live for one in pins):,}",
        f"{sum(one.blocks for one in pins):,} of {sum(one.budget_blocks for one in pins):,} blocks that they may keep",
    )
    yield Tile(
        "Pins ended", f"{sum(sum(one.ended.values()) for one in pins):,}", _list_causes(one.ended for one in pins)
    )


def list_open_jobs(jobs: Sequence[NamedJob]) -> Listing:
    """List the jobs that are not over, the most recently active first."""
    going_on = sorted((job for job in jobs if not job.view.is_over), key=lambda job: job.idle_s)
    rows: list[tuple[str, ...]] = []
    links: list[str] = []
    for job in going_on[:MAX_LISTED]:
        row = (
            job.name,
            _describe_state(job),
            f"{job.view.turn_count:,}",
            f"{job.view.call_count:,}",
            f"{job.view.turns[-1].prompt_tokens:,}" if job.view.turns else NO_DATA,
            _describe_pins(job),
        )
        agents = list(_list_agents(job.view.agents))
        rows += [row, *agents]
        # Relative to the page's own address, which may stand behind a proxy's path.
        links += [find_job_path(job.view.session), *("" for _ in agents)]
    columns = ("Job", "Now", "Turns", "Tool calls", "Last prompt (tokens)", "Pinned")
    return Listing(columns, rows, max(0, len(going_on) - MAX_LISTED), links)


def _list_agents(agents: Sequence[AgentView]) -> Iterator[tuple[str, ...]]:
    """Yield a row a sub-agent, each beneath the one that began it; of many the first ones, and how many more."""
    names = {agent.name for agent in agents}
    # Its parent may have been forgotten.
    parents = {agent.name: agent.parent if agent.parent in names else None for agent in agents}

    def walk(parent: str | None, indent: str) -> Iterator[tuple[str, ...]]:
        for agent in (each for each in agents if parents[each.name] == parent):
            state = "in the engine" if agent.state == "running" else agent.state
            yield indent + shorten_session(agent.name), state, f"{agent.turns:,}", "", "", ""
            yield from walk(agent.name, indent + _INDENT)

    yield from islice(walk(None, _INDENT), MAX_LISTED)
    if len(agents) > MAX_LISTED:
        yield f"{_INDENT}{len(agents) - MAX_LISTED} more", "", "", "", "", ""


def list_ended_jobs(jobs: Sequence[NamedJob]) -> Listing:
    """List what the jobs that are over took, the latest first."""
    latest = sorted(jobs, key=lambda job: job.idle_s)
    ended = [(job, job.view.summary) for job in latest if job.view.summary is not None]
    rows = [
        (
            job.name,
            total.cause or NO_DATA,
            *_count_job(total, [agent.turns for agent in job.view.agents]).tell(),
            format_number(total.gpu_s),
        )
        for job, total in ended[:MAX_LISTED]
    ]
    links = [find_job_path(job.view.session) for job, _ in ended[:MAX_LISTED]]
    return Listing(("Job", "Ended by", *COLUMNS, "GPU (s)"), rows, max(0, len(ended) - MAX_LISTED), links)


def _count_job(total: JobSummary, agent_turns: Sequence[int]) -> JobFigures:
    waited = ", ".join(f"{format_number(seconds)} {reason}" for reason, seconds in total.waits_s.items())
    tokens = total.prompt_tokens, total.cached_tokens, total.output_tokens
    return JobFigures(total.turns, total.latency_s, total.ttft_mean_s, *tokens, waited, agent_turns)


def list_tools(engines: Sequence[EngineSnapshot]) -> Listing:
    """List the tools that jobs waited for, the longest total first."""
    gaps: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for engine in engines:
        counts: Mapping[str, ToolCounts] = engine.runtime.tools if engine.runtime is not None else {}
        for tool, found in counts.items():
            gaps[tool] += found.gaps
            seconds[tool] += found.seconds  # type: ignore[assignment]  # Counter's values are typed as whole numbers
    rows = [
        (tool, f"{gaps[tool]:,}", format_number(total / gaps[tool]), format_number(total))
        for tool, total in seconds.most_common()
        if gaps[tool]
    ]
    return Listing(("Tool", "Waits", "Mean (s)", "In all (s)"), rows)


def _describe_state(job: NamedJob) -> str:
    if job.view.running:
        return "in the engine"
    waited = f"for {format_number(job.idle_s)} s"
    return (
        f"waits for {', '.join(job.view.waits_for)}, {waited}"
        if job.view.waits_for
        else f"waits for its human, {waited}"
    )


def _describe_pins(job: NamedJob) -> str:
    alive = [pin for pin in job.view.pins if pin.ended_s is None]
    if not alive:
        return NO_DATA
    left_s = max(0.0, max(pin.expires_s for pin in alive) - job.view.now_s)
    return f"{sum(pin.blocks_left for pin in alive):,} blocks, {format_number(left_s)} s more"


def _list_causes(counts: Iterable[Mapping[Any, int]]) -> str:
    total: Counter[str] = reduce(lambda sum_, one: sum_ + Counter(one), counts, Counter())
    return ", ".join(f"{number:,} {cause}" for cause, number in total.most_common()) or "none yet"


def list_changes(jobs: Sequence[NamedJob]) -> Listing:
    """List the latest change of each job, the most recently active job first; text only where any may be shown."""
    latest = []
    for job in sorted(jobs, key=lambda job: job.idle_s):
        changes = ((turn.turn, turn.change) for turn in reversed(job.view.turns) if turn.change is not None)
        latest += [(job.name, *change) for change in islice(changes, 1)]
    shown = latest[:MAX_LISTED]
    has_text = any(change.text for _, _, change in shown)
    rows = [_describe_change(*each) + (_describe_text(each[-1].text) if has_text else ()) for each in shown]
    return Listing(_CHANGE_COLUMNS + (_TEXT_COLUMNS if has_text else ()), rows, len(latest) - len(shown))


def _describe_change(job: str, turn: int, change: ChangeView) -> tuple[str, ...]:
    at_token = change.at_token if change.text is None else change.text.at_token
    return job, f"{turn:,}", f"{at_token:,}", change.role or NO_DATA, change.cause


def _describe_text(text: ChangeText | None) -> tuple[str, ...]:
    return (NO_DATA,) * len(_TEXT_COLUMNS) if text is None else (str(text.before), str(text.was), str(text.now))
