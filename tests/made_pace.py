"""A pace that can be followed by hand."""

from __future__ import annotations

from converters.pace import Pace


def make_pace(tool_s=2.0, user_s=7.0, seed=0):
    """Jobs a second apart, every call and every pause of one length."""
    return Pace(
        arrivals=lambda count: [float(number) for number in range(count)],
        tool=lambda _rng: tool_s,
        user=lambda _rng: user_s,
        seed=seed,
    )
