"""Makes Prometheus metrics of the engines' counts: one series for each engine and set of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.engine.views import Histogram

PREFIX = "agentcache:"

Samples = Iterable[tuple[tuple[str, ...], float | None]]
GetSamples = Callable[[EngineSnapshot], Samples]
MakeMetric = Callable[[Iterable[EngineSnapshot]], Metric]


def counter(name: str, text: str, samples: GetSamples, *labels: str) -> MakeMetric:
    """Make a counter. `samples` gives label values and counts; a count of None is no sample."""
    return lambda engines: _fill(CounterMetricFamily(PREFIX + name, text, labels=("engine", *labels)), samples, engines)


def gauge(name: str, text: str, samples: GetSamples, *labels: str) -> MakeMetric:
    """Make a gauge; arguments as for `counter`."""
    return lambda engines: _fill(GaugeMetricFamily(PREFIX + name, text, labels=("engine", *labels)), samples, engines)


def histogram(name: str, text: str, find: Callable[[EngineSnapshot], Histogram | None]) -> MakeMetric:
    """Make a histogram. `find` returns None if an engine does not count this."""
    return histograms(name, text, lambda one: [] if (found := find(one)) is None else [((), found)])


def histograms(
    name: str, text: str, find: Callable[[EngineSnapshot], Iterable[tuple[tuple[str, ...], Histogram]]], *labels: str
) -> MakeMetric:
    """Make a histogram for each of the label values that `find` gives."""

    def make(engines: Iterable[EngineSnapshot]) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, text, labels=("engine", *labels))
        for one in engines:
            for values, found in find(one):
                bounded = [(str(float(bound)), count) for bound, count in zip(found.bounds, found.buckets, strict=True)]
                family.add_metric((str(one.engine), *values), [*bounded, ("+Inf", found.count)], found.total)
        return family

    return make


def by_reason(counts: Mapping[Any, int]) -> Samples:
    """Make a sample for each reason or cause, with its words joined to one label value."""
    return [((label(reason),), count) for reason, count in sorted(counts.items())]


def label(reason: str) -> str:
    """Join the words of a reason to one label value."""
    return reason.replace(" ", "_").replace("-", "_")


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, get_samples: GetSamples, engines: Iterable[EngineSnapshot]
) -> Metric:
    for one in engines:
        for labels, value in get_samples(one):
            if value is not None:
                family.add_metric((str(one.engine), *labels), value)
    return family
