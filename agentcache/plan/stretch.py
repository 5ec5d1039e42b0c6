"""The part of a long recording that is simulated: where most requests came in the shortest time."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.recording.line import Line


def find_busiest(requests: Sequence[Line], count: int) -> Sequence[Line]:
    """Find the `count` requests in a row that came within the shortest time, the first of such; all if there are fewer.

    `requests` are in the order in which they came.
    """
    if len(requests) <= count:
        return requests
    times = [request.timestamp for request in requests]
    begin = min(range(len(times) - count + 1), key=lambda start: times[start + count - 1] - times[start])
    return requests[begin : begin + count]
