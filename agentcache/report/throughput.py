"""What a closed loop shows: throughput per GPU against what each user gets, over the time that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentcache.report.events import RequestEvent
from agentcache.report.policy_run import PolicyRun


class Throughput(BaseModel):
    """Tokens per second and GPU, of the requests answered within the window; and tokens per second and user.

    A user's rate is 1 ÷ a percentile of the time per output token: P90 is that of the slowest tenth. `normalized` has
    the wait for the first token in it. `infinite_hit_rate` is the token hit rate of a cache without evictions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    window_s: float
    gpus: int
    input_tok_s: float
    output_tok_s: float
    total_tok_s: float
    interactivity_p50: float | None
    interactivity_p90: float | None
    normalized_p50: float | None
    normalized_p90: float | None
    infinite_hit_rate: float | None


def measure_throughput(run: PolicyRun) -> Throughput | None:
    """Measure a closed loop; None for other runs, and for one that broke off before it was measured."""
    if run.end is None or run.end.window_s is None:
        return None
    begin_s, end_s = run.end.window_s
    requests = run.answered
    seconds = (end_s - begin_s) * run.end.gpus
    prompt = sum(request.prompt_tokens for request in requests)
    output = sum(request.output_tokens for request in requests)
    infinite = sum(request.infinite_tokens or 0 for request in requests)
    return Throughput(
        window_s=end_s - begin_s,
        gpus=run.end.gpus,
        input_tok_s=prompt / seconds,
        output_tok_s=output / seconds,
        total_tok_s=(prompt + output) / seconds,
        interactivity_p50=_rate(requests, _token_s, 50),
        interactivity_p90=_rate(requests, _token_s, 90),
        normalized_p50=_rate(requests, _whole_token_s, 50),
        normalized_p90=_rate(requests, _whole_token_s, 90),
        infinite_hit_rate=infinite / prompt if prompt else None,
    )


def _token_s(request: RequestEvent) -> float | None:
    return request.tpot_s


def _whole_token_s(request: RequestEvent) -> float | None:
    return (request.finished_s - request.sent_s) / request.output_tokens if request.output_tokens else None


def _rate(
    requests: Iterable[RequestEvent], token_s: Callable[[RequestEvent], float | None], percentile: float
) -> float | None:
    known = [seconds for request in requests if (seconds := token_s(request)) is not None]
    slow = float(np.percentile(known, percentile)) if known else 0.0
    return 1 / slow if slow else None
