"""What expressions of PromQL ask for, and what our server exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from made_engine import make_tiered_engine
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from agentcache.server.metrics import render_metrics
from agentcache.server.snapshot_reader import Reading

METRIC = re.compile(r"\b(?:agentcache|vllm):\w+")
# What Prometheus itself adds to every series.
TARGET_LABELS = {"instance", "job"}


@cache
def list_samples() -> list[Sample]:
    """All that a server with everything exports."""
    text = render_metrics(Reading((make_tiered_engine(),), 0.5)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert samples
    return samples


@cache
def find_exported() -> dict[str, set[str]]:
    """Every series of these, with its labels."""
    return {sample.name: set(sample.labels) for sample in list_samples()}


def series_of(expression: str) -> Iterator[str]:
    return (match[0] for match in METRIC.finditer(expression))
