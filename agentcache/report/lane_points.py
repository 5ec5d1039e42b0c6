"""Compares closed loops under rising load: a point for each policy and number of lanes, and the front among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentcache.report.events import RunRecord
from agentcache.report.summary import PolicySummary, Throughput
from agentcache.report.table import NO_DATA

# Runs that differ in these are not on one line. `jobs` of a closed loop are its lanes.
_OF_LINES = ("workload", "model", "device", "seed", "cache_tokens")
# Settings that every number of lanes has of its own.
OF_LANES = ("concurrency",)


@dataclass(frozen=True, slots=True)
class LanePoint:
    """What one policy did with so many lanes. `line` is the policy, with what else tells its run from the others."""

    line: str
    lanes: int
    figures: PolicySummary

    @property
    def place(self) -> tuple[float, float] | None:
        """Return interactivity, first token included, and throughput per GPU; None where it was not measured."""
        loop = self.figures.throughput
        return None if loop is None or loop.normalized_p50 is None else (loop.normalized_p50, loop.total_tok_s)


def make_points(runs: Sequence[tuple[RunRecord, Mapping[str, PolicySummary]]]) -> tuple[LanePoint, ...]:
    """Make the points of runs, by lanes; none unless all are closed loops, of at least two numbers of lanes.

    None either where two runs had the same policy, lanes and settings: they are not points of one line.
    """
    records = [record for record, _ in runs]
    if len({record.lanes for record in records}) < 2:
        return ()
    suffixes = _tell_apart(records)
    points = [
        LanePoint(f"{policy}{suffix}", record.lanes, figures)
        for (record, policies), suffix in zip(runs, suffixes, strict=True)
        if record.lanes is not None
        for policy, figures in policies.items()
    ]
    told = {(point.line, point.lanes) for point in points}
    if len(told) < len(points) or any(record.lanes is None for record in records):
        return ()
    return tuple(sorted(points, key=lambda point: point.lanes))


def _tell_apart(records: Sequence[RunRecord]) -> list[str]:
    """Write for each run those of its settings in which the runs differ, apart from the lanes."""
    settings = [{**{name: getattr(each, name) for name in _OF_LINES}, **each.settings} for each in records]
    names = [name for name in dict.fromkeys(name for each in settings for name in each) if name not in OF_LANES]
    differing = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    return ["".join(f" {name}={each[name]}" for name in differing if each.get(name) is not None) for each in settings]


def find_front(points: Sequence[LanePoint]) -> list[LanePoint]:
    """Find the points than which no other has as much of both throughput and interactivity, and more of one."""
    places = [point.place for point in points if point.place]

    def is_beaten(place: tuple[float, float]) -> bool:
        return any(user >= place[0] and gpu >= place[1] and (user, gpu) != place for user, gpu in places)

    return [point for point in points if point.place and not is_beaten(point.place)]


def list_lines(points: Sequence[LanePoint]) -> dict[str, list[LanePoint]]:
    """Group the points by line, each in the order of its lanes."""
    lines: dict[str, list[LanePoint]] = {}
    for point in points:
        lines.setdefault(point.line, []).append(point)
    return lines


def describe_front(points: Sequence[LanePoint]) -> str | None:
    """Say in one sentence which points are on the front; None where nothing was measured."""
    front = list_lines(find_front(points))
    parts = [f"{line} with {join_numbers([each.lanes for each in own])} lanes" for line, own in front.items()]
    return f"On the front of throughput and interactivity: {'; '.join(parts)}." if parts else None


def join_numbers(numbers: Sequence[int]) -> str:
    """Write numbers as in a sentence: 4, 8 and 16."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of each point. Those with a `narrow` header are shown on a terminal, of 80 columns, too."""

    header: str
    value: Callable[[PolicySummary], float | None]
    decimals: int
    narrow: str = ""

    def show(self, figures: PolicySummary) -> str:
        """Write the value, or that there is none."""
        value = self.value(figures)
        return NO_DATA if value is None else f"{value:,.{self.decimals}f}"


def _of_loop(read: Callable[[Throughput], float | None]) -> Callable[[PolicySummary], float | None]:
    return lambda figures: read(figures.throughput) if figures.throughput else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


COLUMNS = (
    Column("total tok/s/GPU", _of_loop(lambda loop: loop.total_tok_s), 0, narrow="tok/s/GPU"),
    Column("input", _of_loop(lambda loop: loop.input_tok_s), 0),
    Column("output", _of_loop(lambda loop: loop.output_tok_s), 1),
    Column("turns/min", _of_loop(lambda loop: loop.turns_per_min), 1),
    Column("GPU-s a job", _of_loop(lambda loop: loop.gpu_s_per_job), 1),
    Column("tok/s/user P50", _of_loop(lambda loop: loop.interactivity_p50), 1),
    Column("P90", _of_loop(lambda loop: loop.interactivity_p90), 1),
    Column("with TTFT P50", _of_loop(lambda loop: loop.normalized_p50), 1, narrow="tok/s/user"),
    Column("with TTFT P90", _of_loop(lambda loop: loop.normalized_p90), 1),
    Column("TTFT mean (s)", lambda figures: figures.ttft_s.mean, 2),
    Column("TTFT P99 (s)", lambda figures: figures.ttft_s.p99, 1, narrow="P99 (s)"),
    Column("hits (%)", lambda figures: _percent(figures.token_hit_rate), 1, narrow="hits"),
    Column("infinite cache (%)", _of_loop(lambda loop: _percent(loop.infinite_hit_rate)), 1, narrow="infinite"),
    Column("requests", lambda figures: figures.turns, 0),
    Column("failed", lambda figures: figures.failed, 0),
)


@dataclass(frozen=True, slots=True)
class PointRow:
    """The cells of one point, under `point_headers`."""

    cells: tuple[str, ...]
    on_front: bool


def point_headers(*, narrow: bool = False) -> tuple[str, ...]:
    """Return the names of the columns; the first is of numbers, the second of text."""
    return ("lanes", "policy", *(column.narrow if narrow else column.header for column in _columns(narrow)), "front")


def build_point_rows(points: Sequence[LanePoint], *, narrow: bool = False) -> Iterator[PointRow]:
    """Build a row a point, by lanes, under the names of the columns."""
    front = find_front(points)
    for point in points:
        on_front = point in front
        figures = (column.show(point.figures) for column in _columns(narrow))
        yield PointRow((str(point.lanes), point.line, *figures, "yes" if on_front else ""), on_front)


def _columns(narrow: bool) -> list[Column]:
    return [column for column in COLUMNS if column.narrow or not narrow]
