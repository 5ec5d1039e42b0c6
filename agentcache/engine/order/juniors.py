"""Juniors: of the jobs under way, those with the fewest turns behind them."""

from __future__ import annotations

from collections.abc import Callable

# A job with so many turns behind it has come far, whatever others have done: agents of many turns on small contexts
# gain nothing from waits (docs/results/front.md#juniors).
FAR_TURNS = 5


class Juniors:
    """Tells whose turns leave room to others: new jobs', and those of jobs that have come less far than most.

    A job that has come far has a long context, dear to lose, and is the sooner to end and free it. How far that is
    depends on the agents, so jobs are compared with one another, up to `FAR_TURNS`.
    """

    def __init__(self, get_share: Callable[[], float], find_turns: Callable[[float], int]) -> None:
        """`get_share` gives the share of jobs that are juniors, `find_turns` the turns behind a job above it."""
        self._get_share = get_share
        self._find_turns = find_turns
        # With fewer turns behind it a job is a junior. None until somebody asks in this step.
        self._bound: int | None = None

    def step(self) -> None:
        """Note that a step is scheduled next: jobs have gone on."""
        self._bound = None

    def include(self, turn: int) -> bool:
        """Tell whether a job with so many turns behind it is a junior. One without any always is."""
        if self._bound is None:
            self._bound = max(1, min(FAR_TURNS, self._find_turns(self._get_share())))
        return turn < self._bound
