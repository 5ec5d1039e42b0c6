"""How busy GPUs are, as NVML tells it: the share of the last second, or less, in which a kernel ran."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from vllm.third_party import pynvml

from agentcache.report.events import RunRecord
from agentcache.report.policy_run import PolicyRun


class Sample(NamedTuple):
    """The mean of all GPUs, from 0 to 1, at a time since the epoch."""

    time_s: float
    busy: float


class GpuWatch:
    """Looks at so many GPUs, the first ones, when it is asked to. Where NVML tells nothing there are no samples."""

    def __init__(self, gpus: int) -> None:
        self.samples: list[Sample] = []
        self._handles: list[object] = []
        if gpus:
            try:
                pynvml.nvmlInit()
                self._handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(gpus)]
                self.look()
            except pynvml.NVMLError as error:
                self._handles = []
                sys.stdout.write(f"NVML does not tell how busy the GPUs are: {error}\n")

    def look(self) -> None:
        """Note how busy the GPUs are now."""
        if self._handles:
            busy = [pynvml.nvmlDeviceGetUtilizationRates(each).gpu / 100 for each in self._handles]
            self.samples.append(Sample(time.time(), float(np.mean(busy))))


def find_span(record: RunRecord, run: PolicyRun) -> tuple[float, float]:
    """Find the time that counts, since the epoch: a closed loop's measured time, else first request to last reply."""
    began_s = datetime.fromisoformat(record.started_at).timestamp()
    window_s = run.end.window_s if run.end else None
    first_s, last_s = window_s or (
        min(request.sent_s for request in run.requests),
        max(request.finished_s for request in run.requests),
    )
    return began_s + first_s, began_s + last_s


def find_busy_share(samples: Sequence[Sample], spans: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean from the first span's begin to the last one's end; None without samples there."""
    begin_s, end_s = min(begin_s for begin_s, _ in spans), max(end_s for _, end_s in spans)
    within = [sample.busy for sample in samples if begin_s <= sample.time_s <= end_s]
    return float(np.mean(within)) if within else None
