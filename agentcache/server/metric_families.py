"""Makes Prometheus metrics of the engines' counts: one series for each engine and set of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from agentcache.engine.rpc.snapshot import EngineSnapshot

PREFIX = "agentcache:"

Samples = Iterable[tuple[tuple[str, ...], Any]]
GetSamples = Callable[[EngineSnapshot], Samples]
MakeMetric = Callable[[Iterable[EngineSnapshot]], Metric]


def counter(name: str, text: str, source: str | GetSamples, *labels: str) -> MakeMetric:
    """Make a counter of what `source` names (`read`), or of the label values and counts that it gives."""
    return lambda engines: _fill(CounterMetricFamily(PREFIX + name, text, labels=("engine", *labels)), source, engines)


def gauge(name: str, text: str, source: str | GetSamples, *labels: str) -> MakeMetric:
    """Make a gauge; arguments as for `counter`."""
    return lambda engines: _fill(GaugeMetricFamily(PREFIX + name, text, labels=("engine", *labels)), source, engines)


def histogram(name: str, text: str, source: str | GetSamples, *labels: str) -> MakeMetric:
    """Make a histogram; arguments as for `counter`, with a `Histogram` for each count."""

    def make(engines: Iterable[EngineSnapshot]) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, text, labels=("engine", *labels))
        for one in engines:
            for values, found in read(one, source):
                bounded = [(str(float(bound)), count) for bound, count in zip(found.bounds, found.buckets, strict=True)]
                family.add_metric((str(one.engine), *values), [*bounded, ("+Inf", found.count)], found.total)
        return family

    return make


def read(one: EngineSnapshot, source: str | GetSamples) -> Samples:
    """Read what has this path in a snapshot: a sample, or one for each reason; none where the engine has no such."""
    if not isinstance(source, str):
        return source(one)
    value: Any = one
    for name in source.split("."):
        value = getattr(value, name)
        if value is None:
            return ()
    return by_reason(value) if isinstance(value, Mapping) else [((), value)]


def by_reason(counts: Mapping[Any, Any]) -> Samples:
    """Make a sample for each reason or cause, with its words joined to one label value."""
    return [((reason.replace(" ", "_").replace("-", "_"),), counts[reason]) for reason in sorted(counts)]


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, source: str | GetSamples, engines: Iterable[EngineSnapshot]
) -> Metric:
    for one in engines:
        for labels, value in read(one, source):
            family.add_metric((str(one.engine), *labels), value)
    return family
