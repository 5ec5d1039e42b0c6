"""Learns from agents' requests as they come and go, and decides how long to keep what a turn left.

Plain values in, decisions out; the engine carries them out. Besides gaps it learns how busy the engine is, how fast
contexts grow, and how long a turn and the tools behind it take.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.job_blocks import MOST_AWAY_S
from tool_runtime.learning.job_entry import Departed, Gap, PendingTurn
from tool_runtime.learning.job_table import MAX_EXPIRED, JobTable, Parent
from tool_runtime.learning.tool_key import HUMAN, ToolKey
from tool_runtime.learning.ttl import RELEASE, GapHistory, Hold, Situation, TtlEstimator

# Assumed; not tuned. AsymCache (Applications, Agentic Workload) has such a factor and gives no number.
DEFAULT_BOUND = 8.0


def correction_factor(
    history: GapHistory, lifespan_s: float | None, reference: float, bound: float = DEFAULT_BOUND
) -> float:
    """Return the chance that this turn's job returns within `lifespan_s` seconds, over `reference`, that of any turn.

    After a tool call that chance comes from the tool's record, after a final answer from the human one; `history` is
    one or the other. `lifespan_s` and `reference` are where the evictor's frequency turns. Between 1 / bound and bound;
    exactly 1, which changes nothing, where no gap was observed yet or there is no lifespan.
    """
    if not 0 < reference <= 1:
        raise ValueError(f"reference {reference}: must be a probability above 0")
    if not 1 <= bound < math.inf:
        raise ValueError(f"bound {bound}: must be at least 1 and finite")
    if lifespan_s is None or history.evidence <= 0:
        return 1.0
    return min(max(history.curve.returned_within(lifespan_s) / reference, 1 / bound), bound)


# How far the growth is looked ahead, about what jobs that have not come far still have before them.
AHEAD_TURNS = 5
# The latest turns that count. Before anything is known a context is taken to double in those turns; a guess that
# weighs as much as so many turns.
_TURN_WINDOW = 1000
_PRIOR, _PRIOR_TURNS = 1 / AHEAD_TURNS, 8


class ContextGrowth:
    """Learns from every turn, whatever its agent: what one agent's jobs add would take longer to learn."""

    def __init__(self) -> None:
        # Tokens of a turn's prompt, and by how many the prompt of its job's next turn was longer.
        self._turns: deque[tuple[int, int]] = deque(maxlen=_TURN_WINDOW)
        self._prompts = self._added = 0

    def note_turn(self, prompt_tokens: int, next_prompt_tokens: int) -> None:
        """Note two turns of a job, one after the other, by the tokens of their prompts.

        Shorter than the one before is the prompt of another thread, or of a context that was cut: neither tells.
        """
        if not 0 < prompt_tokens <= next_prompt_tokens:
            return
        if len(self._turns) == _TURN_WINDOW:
            prompt, added = self._turns[0]
            self._prompts -= prompt
            self._added -= added
        turn = prompt_tokens, next_prompt_tokens - prompt_tokens
        self._turns.append(turn)
        self._prompts += turn[0]
        self._added += turn[1]

    @property
    def ratio(self) -> float:
        """The tokens that a job is still to add to a prompt in `AHEAD_TURNS` turns, as a multiple of the prompt's."""
        known = len(self._turns)
        seen = self._added / self._prompts if known else 0.0
        return AHEAD_TURNS * (known * seen + _PRIOR_TURNS * _PRIOR) / (known + _PRIOR_TURNS)


# About so many of the latest turns count.
_ROUNDS = 256


class Rounds:
    """Learns how long a job's round lasts: a turn, once it runs, and the tools behind it."""

    def __init__(self) -> None:
        self._seconds = self._turns = 0.0

    def note_turn(self, seconds: float) -> None:
        """Note a turn that has ended so many seconds after it began to run."""
        self._seconds += seconds - self._seconds / _ROUNDS
        self._turns += 1 - self._turns / _ROUNDS

    def note_tools(self, seconds: float) -> None:
        """Note that a job came back so many seconds after its turn. It was under way for `MOST_AWAY_S` at most."""
        self._seconds += min(seconds, MOST_AWAY_S)

    @property
    def mean_s(self) -> float:
        """The mean of the latest rounds; 0 before the first turn has ended."""
        return self._seconds / self._turns if self._turns else 0.0


# Means are over the latest admissions, and rates over about the last minute. Both are assumed, none is tuned;
# Continuum publishes no window for its T.
_ADMISSION_WINDOW = 256
_HALF_LIFE_S = 60.0


class Load:
    """All is 0 before anything was observed. Times are seconds on `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._evicted_waits_s: deque[float] = deque(maxlen=_ADMISSION_WINDOW)
        self._rebuilt_s = 0.0
        self._updated_s = clock()

    def admitted(self, wait_s: float, rebuilt_s: float) -> None:
        """Note a request admitted after `wait_s`; `rebuilt_s` of its prefill is for KV that its job had before."""
        if rebuilt_s > 0:
            self._evicted_waits_s.append(max(wait_s, 0.0))
        self._rebuilt_s = self._fade() + rebuilt_s

    @property
    def evicted_wait_s(self) -> float:
        """The mean wait of the latest admissions that found less than their job had left (Continuum's T)."""
        return sum(self._evicted_waits_s) / len(self._evicted_waits_s) if self._evicted_waits_s else 0.0

    def price(self, share: float, *, queued: bool) -> float:
        """Return the seconds of the engine's work lost for each second for which this share of the cache is kept.

        What is rebuilt, in seconds of prefill per second, is what a whole cache more would save; so a share of it
        costs that share. While requests are `queued`, the share would hold some of them, so it costs that share of
        the engine's work as well. It is 0 where nothing has to be rebuilt or to wait: the cache is not short.
        """
        return share * (self._fade() * math.log(2) / _HALF_LIFE_S + float(queued))

    def _fade(self) -> float:
        now_s = self._clock()
        self._rebuilt_s *= math.exp2(-max(now_s - self._updated_s, 0.0) / _HALF_LIFE_S)
        self._updated_s = max(now_s, self._updated_s)
        return self._rebuilt_s


def memoryfulness(job_turns: Sequence[int]) -> float:
    """Return η of Continuum, §4.1: −Corr(k, N − k) over the turns k = 1 … N−1 of finished jobs of N turns each.

    1 where all jobs are of one length, about 0 where they end at random. 0 where nothing is known yet: no job had
    three turns, nor did jobs of two lengths.
    """
    lengths = [turns for turns in job_turns if turns > 1]
    count = sum(turns - 1 for turns in lengths)
    total = sum(turns * (turns - 1) // 2 for turns in lengths)
    squares = sum((turns - 1) * turns * (2 * turns - 1) // 6 for turns in lengths)
    products = sum(turns * (turns * (turns - 1) // 2) for turns in lengths) - squares
    # k and N − k run over the same numbers, so they have one variance.
    variance = count * squares - total * total
    covariance = count * products - total * total
    return -covariance / variance if variance else 0.0


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
        self.rounds = Rounds()
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
            if gap.turn.key != HUMAN:
                self.rounds.note_tools(gap.seconds)
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
