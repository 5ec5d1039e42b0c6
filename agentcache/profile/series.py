"""Steps of a kind in a row, timed together: with async scheduling, what is noted for a single step may be wrong.

The engine launches the next step before it looks whether this one has ended. A launch can take longer than a step, as
that of a prefill does beside a decode: then the decode's end is noted late, and the prefill seems to take less than it
does. In a row of equal steps every end is noted equally late, and the mean between two ends is right, whether the GPU
or the launches set the pace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from agentcache.errors import IntegrityError
from agentcache.policy.step_fit import MeasuredStep

# The launches of the first two may still run behind those of another kind; after the last comes another kind again.
_LEAD, _TRAIL = 2, 1
_AVERAGED = 4
SERIES_STEPS = _LEAD + _AVERAGED + _TRAIL


def average_series(steps: Sequence[MeasuredStep], belongs: Callable[[MeasuredStep], bool]) -> MeasuredStep:
    """Average the inner steps of a series into one step; `steps` are all that ran, in order.

    Raises IntegrityError when too few that belong followed each other; `SERIES_STEPS` are enough.
    """
    kinds = [belongs(step) for step in steps]
    inner = [steps[i] for i in range(_LEAD, len(steps) - _TRAIL) if all(kinds[i - _LEAD : i + _TRAIL + 1])]
    if not inner:
        raise IntegrityError(f"of {len(steps)} steps, {sum(kinds)} had the rows asked for, and too few in a row")
    return MeasuredStep(inner[len(inner) // 2].rows, fmean(step.seconds for step in inner))
