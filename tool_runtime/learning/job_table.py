"""Keeps the jobs under way: the turns of each session, its running requests, and what it waits for."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count, islice, takewhile

from tool_runtime.learning.job_blocks import MOST_AWAY_S, TurnCounts
from tool_runtime.learning.job_entry import Departed, Departure, Gap, JobEntry, PendingTurn
from tool_runtime.learning.tool_key import ELSEWHERE, HUMAN, ToolKey, turn_key


class SteadyClock:
    """A clock that goes on from where it was when the one below jumps back. `resets` counts the jumps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offset_s = 0.0
        self._last_s = self._now_s = clock()
        self.resets = 0

    def now_s(self) -> float:
        """Return the time in seconds, never less than before."""
        reading_s = self._clock()
        if reading_s < self._last_s:
            self.resets += 1
            self._offset_s += self._last_s - reading_s
        self._last_s = reading_s
        # Rounding in the offset must not turn time back either.
        self._now_s = max(self._now_s, reading_s + self._offset_s)
        return self._now_s


MAX_ID = 64
MAX_PENDING = 64
# So many of a kind end in a step because their time is over, idle jobs, jobs away or pins: after a rest there may be
# thousands, and 32 take 8 ms.
MAX_EXPIRED = 32


class Parent(Enum):
    """Stands for the turn that a request continues where that is unknown, or there is none."""

    UNKNOWN = "unknown"
    NONE = "none"


class JobTable:
    """At most `max_jobs` jobs, idle for at most `max_idle_s` seconds, by session. Every operation is O(1) amortised.

    Jobs with running requests never leave; as many of them as the engine has requests may exceed `max_jobs`.
    Ids of any length are taken. Calls that make no sense (a request that is unknown, or begins twice) change nothing.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_jobs: int = 10_000,
        max_idle_s: float = 3600.0,
        max_blocks: int = 1_000_000,
    ) -> None:
        """Begin without jobs. `max_blocks` bounds how many blocks of their prompts are counted."""
        if max_jobs < 1:
            raise ValueError(f"max_jobs {max_jobs}: must be at least 1")
        if not max_idle_s > 0:
            raise ValueError(f"max_idle_s {max_idle_s}: must be positive")
        self._clock = SteadyClock(clock)
        self._max_jobs = max_jobs
        self._max_idle_s = max_idle_s
        self._numbers = count(1)
        self._busy: dict[str, JobEntry] = {}
        self._idle: OrderedDict[str, JobEntry] = OrderedDict()
        # Names of jobs by their client's session, in the order of their arrival.
        self._by_client: dict[str, dict[str, None]] = {}
        self._departed: deque[Departed] = deque(maxlen=max_jobs)
        self.turn_counts = TurnCounts(max_blocks)
        # Jobs that have been away since before then do not count there.
        self._away_from_s = -math.inf

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._busy) + len(self._idle)

    @property
    def jobs(self) -> tuple[JobEntry, ...]:
        """The busy ones, then the idle ones, longest idle first."""
        return (*self._busy.values(), *self._idle.values())

    def get(self, session: str) -> JobEntry | None:
        """Return the session's job, None if there is none."""
        key = bounded_id(session)
        return self._busy.get(key) or self._idle.get(key)

    def find(self, client_session: str) -> list[JobEntry]:
        """Find the jobs that clients call so, one a tenant, in the order of their arrival."""
        names = self._by_client.get(bounded_id(client_session), ())
        return [entry for name in names if (entry := self.get(name)) is not None]

    def begin(
        self, session: str, request: str, parent: str | Parent = Parent.UNKNOWN, *, client_session: str | None = None
    ) -> Gap | None:
        """Book the arrival of a request.

        Args:
            session: The job's name in the table.
            request: The request's.
            parent: The finished request whose prompt and reply the new prompt extends. Where it is unknown, a lone
                pending turn is taken for it; of several, the oldest, and the gap is not certain.
            client_session: What the client calls the session of a new job, None if that is the job's name.

        Returns:
            The gap since the turn that the request continues, if it continues one.
        """
        now_s = self._clock.now_s()
        key, request = bounded_id(session), bounded_id(request)
        entry = self._busy.get(key)
        if entry is None:
            idle = self._idle.pop(key, None)
            entry = self._busy[key] = idle or self._add(key, now_s, client_session)
            self._drop_surplus()
        if request in entry.running:
            return None
        gap = self._take_gap(entry, parent, now_s)
        if gap is not None:
            self.turn_counts.blocks.rename(entry.number, gap.request, request)
        entry.running[request] = entry.last_active_s = now_s
        entry.is_final = False
        self._count_turns(entry)
        return gap

    def finish(
        self,
        session: str,
        request: str,
        calls: Sequence[ToolKey] = (),
        *,
        prompt_tokens: int = 0,
        prompt: Sequence[bytes] = (),
    ) -> PendingTurn | None:
        """Book a whole reply with these tool calls; return what the job waits for now, None if it is over.

        `prompt` are the hashes of the prompt's blocks, each of which stands for all before it as well.
        """
        entry = self._stop(session, request)
        if entry is None:
            return None
        entry.turns += 1
        entry.prompt_tokens = prompt_tokens
        self.turn_counts.blocks.put(entry.number, bounded_id(request), prompt)
        entry.calls += sum(call != ELSEWHERE for call in calls)
        turn = PendingTurn(turn_key(calls), entry.last_active_s, self._clock.resets)
        if not entry.is_final:
            entry.pending[bounded_id(request)] = turn
            if len(entry.pending) > MAX_PENDING:
                del entry.pending[next(iter(entry.pending))]
        self._settle(entry)
        return None if entry.is_final else turn

    def fail(self, session: str, request: str) -> None:
        """Book a request that was aborted, cut off or failed: nothing waits for it or may be learned from it."""
        entry = self._stop(session, request)
        if entry is not None:
            entry.failures += 1
            self._settle(entry)

    def end(self, session: str) -> bool:
        """End the job: it leaves now, or as soon as nothing of it runs. Return False if there is no such job."""
        entry = self.get(session)
        if entry is None:
            return False
        entry.is_final = True
        entry.pending.clear()
        self._count_turns(entry)
        if not entry.running:
            self._drop(entry, Departure.ENDED)
        return True

    def drop_overdue(self, session: str) -> bool:
        """Drop the job if it has been idle for too long, however many others have. Tell whether it was."""
        entry = self._idle.get(bounded_id(session))
        if entry is None or not self._is_overdue(entry, self._clock.now_s()):
            return False
        self._drop(entry, Departure.IDLE)
        return True

    def expire(self, most: int = MAX_EXPIRED) -> list[Departed]:
        """Drop up to `most` jobs idle for too long; return all that left since the last call, at most `max_jobs`."""
        now_s = self._clock.now_s()
        self._away_from_s = now_s - MOST_AWAY_S
        self.turn_counts.drop_away(self._away_from_s, MAX_EXPIRED)
        overdue = takewhile(lambda entry: self._is_overdue(entry, now_s), self._idle.values())
        for entry in list(islice(overdue, most)):
            self._drop(entry, Departure.IDLE)
        departed = list(self._departed)
        self._departed.clear()
        return departed

    def check_integrity(self) -> None:
        """Raise RuntimeError when the table contradicts itself."""
        for entries, is_busy in ((self._busy, True), (self._idle, False)):
            for session, entry in entries.items():
                if session != entry.session or bool(entry.running) != is_busy or (entry.is_final and not is_busy):
                    raise RuntimeError(f"job {session!r} is filed wrongly: {entry}")
                if len(entry.pending) > MAX_PENDING or entry.last_active_s < entry.arrival_s:
                    raise RuntimeError(f"job {session!r} is beyond its bounds: {entry}")
        filed = {name: client for client, names in self._by_client.items() for name in names}
        if filed != {entry.session: entry.client_session for entry in self.jobs}:
            raise RuntimeError("jobs are filed under other sessions than their clients'")
        if both := self._busy.keys() & self._idle.keys():
            raise RuntimeError(f"jobs both busy and idle: {sorted(both)[:5]}")
        if self._idle and len(self) > self._max_jobs:
            raise RuntimeError(f"{len(self)} jobs, of which {len(self._idle)} idle: at most {self._max_jobs}")
        behind = {entry.number: turns for entry in self.jobs if (turns := _count_behind(entry)) is not None}
        away = {entry.number for entry in self._idle.values() if entry.last_active_s < self._away_from_s}
        self.turn_counts.check_integrity(behind, away)
        active = [entry.last_active_s for entry in self._idle.values()]
        if active != sorted(active):
            raise RuntimeError("idle jobs are not in the order of their last activity")

    def _is_overdue(self, entry: JobEntry, now_s: float) -> bool:
        return entry.last_active_s < now_s - self._max_idle_s

    def _add(self, name: str, now_s: float, client_session: str | None) -> JobEntry:
        client = name if client_session is None else bounded_id(client_session)
        self._by_client.setdefault(client, {})[name] = None
        return JobEntry(name, now_s, now_s, next(self._numbers), client)

    def _take_gap(self, entry: JobEntry, parent: str | Parent, now_s: float) -> Gap | None:
        if parent is Parent.NONE or not entry.pending:
            return None
        name = next(iter(entry.pending)) if isinstance(parent, Parent) else bounded_id(parent)
        alone = len(entry.pending) == 1 and not entry.running
        turn = entry.pending.pop(name, None)
        if turn is None:
            return None
        return self._gap(name, turn, now_s, alone or parent is not Parent.UNKNOWN)

    def _gap(self, request: str, turn: PendingTurn, now_s: float, is_known: bool) -> Gap:
        return Gap(request, turn, now_s - turn.finished_s, is_known and turn.clock_resets == self._clock.resets)

    def _stop(self, session: str, request: str) -> JobEntry | None:
        entry = self._busy.get(bounded_id(session))
        if entry is None or entry.running.pop(bounded_id(request), None) is None:
            return None
        entry.last_active_s = self._clock.now_s()
        return entry

    def _settle(self, entry: JobEntry) -> None:
        """File a job anew after one of its requests stopped."""
        self._count_turns(entry)
        if entry.running:
            return
        if entry.is_final:
            self._drop(entry, Departure.ENDED)
            return
        self._idle[entry.session] = self._busy.pop(entry.session)
        self._drop_surplus()

    def _count_turns(self, entry: JobEntry) -> None:
        turns = _count_behind(entry)
        if turns is None:
            self.turn_counts.drop(entry.number)
        else:
            away_since_s = None if entry.running else entry.last_active_s
            self.turn_counts.put(entry.number, turns, away_since_s=away_since_s)
            self.turn_counts.blocks.keep(entry.number, entry.pending, entry.running)

    def _drop_surplus(self) -> None:
        while self._idle and len(self) > self._max_jobs:
            self._drop(next(iter(self._idle.values())), Departure.CAPACITY)

    def _drop(self, entry: JobEntry, cause: Departure) -> None:
        if self._idle.pop(entry.session, None) is None:
            del self._busy[entry.session]
        self.turn_counts.drop(entry.number)
        names = self._by_client[entry.client_session]
        del names[entry.session]
        if not names:
            del self._by_client[entry.client_session]
        now_s = self._clock.now_s()
        unanswered = tuple(self._gap(*pending, now_s, is_known=True) for pending in entry.pending.items())
        self._departed.append(Departed(entry, cause, unanswered))


def _count_behind(entry: JobEntry) -> int | None:
    """Count the turns that it has done, whatever came of them; None while nothing runs but, at most, a human thinks."""
    is_under_way = entry.running or any(turn.key != HUMAN for turn in entry.pending.values())
    return entry.turns + entry.failures if is_under_way else None


def bounded_id(name: str) -> str:
    """Return a short id as it is, a longer one as a digest, which is too long to be anyone's short id."""
    if len(name) <= MAX_ID:
        return name
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
