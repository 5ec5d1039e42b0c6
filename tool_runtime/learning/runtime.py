"""What an engine asks and tells while agents' requests come and go: jobs, what their gaps taught, how long to wait.

Plain values in, decisions out; the engine carries them out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tool_runtime.learning.context_growth import ContextGrowth
from tool_runtime.learning.correction import correction_factor
from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.job_entry import Departed, Gap, PendingTurn
from tool_runtime.learning.job_table import MAX_EXPIRED, JobTable, Parent
from tool_runtime.learning.load import Load
from tool_runtime.learning.tool_key import ToolKey
from tool_runtime.learning.ttl import RELEASE, Hold, Situation, TtlEstimator, memoryfulness

# Finished jobs of which Continuum's memoryfulness is computed; independent implementations take as many.
_JOB_WINDOW = 256


class AgentRuntime:
    """`estimator` decides on holds; None never holds. Times are seconds on `clock`."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        estimator: TtlEstimator | None = None,
        durations: Durations | None = None,
        max_jobs: int = 10_000,
        max_idle_s: float = 3600.0,
        max_blocks: int = 1_000_000,
    ) -> None:
        self.jobs = JobTable(clock=clock, max_jobs=max_jobs, max_idle_s=max_idle_s, max_blocks=max_blocks)
        self.durations = Durations() if durations is None else durations
        self.load = Load(clock)
        self.context_growth = ContextGrowth()
        self._clock = clock
        self._estimator = estimator
        self._job_turns: deque[int] = deque(maxlen=_JOB_WINDOW)
        self._memoryfulness: float | None = None

    def arrived(
        self, session: str, request: str, parent: str | Parent = Parent.UNKNOWN, *, client_session: str | None = None
    ) -> Gap | None:
        """Book the arrival of a request, as `JobTable.begin` does. A certain gap is learned from."""
        gap = self.jobs.begin(session, request, parent, client_session=client_session)
        if gap is not None and gap.certain:
            self.durations.observe(gap.turn.key, gap.seconds, Ended.RETURNED, self._clock())
        return gap

    def finished(
        self,
        session: str,
        request: str,
        calls: Sequence[ToolKey],
        *,
        prompt_tokens: int = 0,
        prompt: Sequence[bytes] = (),
    ) -> PendingTurn | None:
        """Book a whole reply with these calls, as `JobTable.finish` does; return what the job waits for now."""
        entry = self.jobs.get(session)
        if entry is not None:
            self.context_growth.note_turn(entry.prompt_tokens, prompt_tokens)
        return self.jobs.finish(session, request, calls, prompt_tokens=prompt_tokens, prompt=prompt)

    def failed(self, session: str, request: str) -> None:
        """Book a reply that was cut off, aborted or failed: nothing is learned from it."""
        self.jobs.fail(session, request)

    def expire(self, most: int = MAX_EXPIRED) -> list[Departed]:
        """Return the jobs that left since the last call, as `JobTable.expire` does; learn that none answered."""
        departed = self.jobs.expire(most)
        for each in departed:
            self._job_turns.append(each.job.turns)
            self._memoryfulness = None
            for gap in each.unanswered:
                if gap.certain:
                    self.durations.observe(gap.turn.key, gap.seconds, Ended.STILL_OUT, self._clock())
        return departed

    def decide_hold(
        self, key: ToolKey, *, age_s: float, loss_s: float, prefill_s: float, share: float, queued: bool
    ) -> Hold:
        """Decide how long to keep what a turn left, `age_s` seconds after its end.

        `loss_s` is what it costs to rebuild, `prefill_s` the prefill of its whole context, `share` its part of the
        cache; `queued`: requests wait now. All are seconds of the engine's work, which all who wait wait for. That the
        job need not queue is worth nothing: others wait as much longer.
        """
        if self._estimator is None:
            return RELEASE
        return self._estimator.decide(
            Situation(
                history=self.durations.history(key),
                age_s=age_s,
                loss_s=loss_s,
                prefill_s=prefill_s,
                evicted_wait_s=self.load.evicted_wait_s,
                price=self.load.price(share, queued=queued),
                memoryfulness=self.memoryfulness,
            )
        )

    def correction_factor(self, key: ToolKey, lifespan_s: float | None, reference: float) -> float:
        """Return how much likelier than any turn the one filed under `key` is to be continued within the lifespan."""
        return correction_factor(self.durations.history(key), lifespan_s, reference)

    @property
    def memoryfulness(self) -> float:
        """The memoryfulness of the jobs that ended lately: 1 where all have the same number of turns."""
        if self._memoryfulness is None:
            self._memoryfulness = memoryfulness(self._job_turns)
        return self._memoryfulness
