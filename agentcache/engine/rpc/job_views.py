"""Shows jobs, and what was counted of all of them, when somebody asks. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from operator import attrgetter

from agentcache.engine.blocks.pins import Pin, Pins
from agentcache.engine.job_summary import AgentView
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.observe.stats import MAX_TURNS, JobRecord, JobStats
from agentcache.engine.views import JobView, PinCounts, PinView, RuntimeCounts
from tool_runtime.learning.job_entry import JobEntry
from tool_runtime.learning.tool_key import HUMAN

# So many jobs of one session, and of them so many turns, are shown or ended by one call, between two steps.
MAX_JOBS_AT_ONCE = 256
_MAX_TURNS_AT_ONCE = 1024


def view_session(
    tracker: JobTracker, session: str, tenants: Collection[str | None] | None = None, *, with_ended: bool = False
) -> list[JobView]:
    """View the session's jobs, one a tenant, or those of these tenants; of many the first, with fewer turns.

    Those that have left the table come behind the others, the latest first.
    """
    ended = {entry.number: (record, entry) for record, entry in reversed(tracker.stats.ended)} if with_ended else {}
    jobs = tracker.finder.find_jobs(session, tenants, [entry for _, entry in ended.values()])[:MAX_JOBS_AT_ONCE]
    max_turns = min(MAX_TURNS, max(1, _MAX_TURNS_AT_ONCE // max(1, len(jobs))))
    views = (
        view_job(*ended[entry.number], None, tracker.clock(), is_over=True, max_turns=max_turns)
        if entry.number in ended
        else _view(tracker, entry, max_turns)
        for entry in jobs
    )
    # Who took a tenant's blocks may be another tenant.
    return list(views) if tenants is None else [_hide_takers(view) for view in views]


def view_jobs(tracker: JobTracker, max_turns: int = MAX_TURNS) -> Iterator[JobView]:
    """View the jobs of the table with their latest turns, the job that was active last first."""
    for entry in sorted(tracker.runtime.jobs.jobs, key=lambda entry: -entry.last_active_s):
        yield _view(tracker, entry, max_turns)


def view_ended(stats: JobStats, now_s: float, max_turns: int = MAX_TURNS) -> Iterator[JobView]:
    """View the jobs that left the table with their latest turns, the latest job first."""
    for record, entry in reversed(stats.ended):
        yield view_job(record, entry, None, now_s, is_over=True, max_turns=max_turns)


def count_runtime(tracker: JobTracker) -> RuntimeCounts:
    """Count everything since the start."""
    held_turns = tracker.waiting.load_control.held_turns
    now = {"jobs": len(tracker.runtime.jobs), "pins": _count_pins(tracker.pins), "held_turns": held_turns}
    for name, told in (("log_lost", tracker.stats.log), ("spans_lost", tracker.stats.spans)):
        now[name] = 0 if told is None else told.lost
    return tracker.stats.counts.model_copy(deep=True, update=now)


def _view(tracker: JobTracker, entry: JobEntry, max_turns: int) -> JobView:
    record, now_s = tracker.stats.jobs[entry.session], tracker.clock()
    return view_job(record, entry, tracker.pins, now_s, is_over=entry.is_final, max_turns=max_turns)


def view_job(
    record: JobRecord, entry: JobEntry, pins: Pins | None, now_s: float, *, is_over: bool, max_turns: int = MAX_TURNS
) -> JobView:
    """View one job with its latest turns and their pins; `pins` None where none of the job's can be alive."""
    turns = tuple(record.turns)[-max_turns:]
    # Turns have numbers as they come, and are here as they end.
    numbers = {turn.turn for turn in turns}
    return JobView(
        session=entry.client_session,
        now_s=now_s,
        arrived_s=entry.arrival_s,
        last_active_s=entry.last_active_s,
        turns=turns,
        turn_count=entry.turns,
        call_count=entry.calls,
        failure_count=entry.failures,
        running=len(entry.running),
        waits_for=tuple(turn.key.tool for turn in entry.pending.values() if turn.key != HUMAN),
        is_over=is_over,
        agents=tuple(AgentView(**agent.tell()) for agent in sorted(entry.agents.values(), key=attrgetter("began_s"))),
        pins=tuple(_view_pin(pin, pins) for pin in record.pins if pin.turn in numbers),
        hits=dict(record.hits),
        evicted_from=dict(record.evicted_from),
        summary=record.summary if record.summary.cause is not None else None,
    )


def _hide_takers(view: JobView) -> JobView:
    """Leave out for which sessions the job's blocks were evicted, but for its own."""
    turns = tuple(
        replace(
            turn,
            lost_to=tuple(
                loss if loss.taker == view.session else loss.model_copy(update={"taker": None}) for loss in turn.lost_to
            ),
        )
        for turn in view.turns
    )
    return view.model_copy(update={"turns": turns})


def _count_pins(pins: Pins | None) -> PinCounts:
    if pins is None:
        return PinCounts()
    return PinCounts(
        live=len(pins),
        blocks=pins.blocks,
        budget_blocks=pins.budget_blocks,
        began=pins.began,
        ended=dict(pins.ended),
        held_s=pins.held_s,
    )


def _view_pin(pin: Pin, pins: Pins | None) -> PinView:
    return PinView(
        turn=pin.turn,
        began_s=pin.began_s,
        expires_s=pin.expires_s,
        blocks=pin.blocks,
        blocks_left=pins.blocks_left(pin) if pins is not None else 0,
        value_s=pin.value_s,
        ended_s=pin.ended_s,
        cause=pin.end.value if pin.end is not None else None,
    )
