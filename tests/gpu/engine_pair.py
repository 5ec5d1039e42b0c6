"""An engine under test and the cold one that it is compared with, each alone in its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from asked_alone import Sampling, ask_alone, ask_together
from engine_alone import EngineAlone, EngineFailedError
from live_engine import Reply, make_prompt
from served import MARGIN, MOST_OTHER, find_distance

# CUDA graphs as vLLM picks them, steps scheduled while others run, and prompts in chunks.
SERVED: dict[str, Any] = {
    "dtype": "bfloat16",
    "enforce_eager": False,
    "skip_tokenizer_init": True,
    "max_model_len": 1024,
    # What is free on the GPU when an engine starts must be as much; others have started by then.
    "gpu_memory_utilization": 0.1,
}
# Blocks for all requests of a test at once.
ROOMY = 400
# Compiled as the other, or it would round otherwise; but what it computes does not depend on a graph.
COLD: dict[str, Any] = {
    "scheduler": None,
    "enable_prefix_caching": False,
    "compilation_config": {"cudagraph_mode": "NONE"},
    "num_gpu_blocks_override": ROOMY,
}
# Of 16 replies one or two had other tokens where eight of 24 had later.
MEASURED = 32
# The last bits of bfloat16, where a logit is some units large.
LEAST = 0.02
# A model whose kernels repeat themselves no better than that would pass with a wrong block.
MOST = 0.5


@dataclass(frozen=True, slots=True)
class Pair:
    """`own` is how far stock vLLM's batches are from its single requests; `other`, of how many the tokens differ."""

    engine: EngineAlone
    cold: EngineAlone
    own: float
    other: float

    @property
    def tolerance(self) -> float:
        """The most that a token's logprob may differ."""
        return MARGIN * max(self.own, LEAST)

    def assert_near_cold(self, turns: list[tuple[list[int], int, Reply]], sampling: Sampling | None = None) -> None:
        """Compare replies to these prompts, of that length, with the cold engine's."""
        expected = self.cold.call(ask_together, [(prompt, length) for prompt, length, _ in turns], sampling)
        replies = [reply for *_, reply in turns]
        distances = [find_distance(*pair) for pair in zip(replies, expected, strict=True)]
        assert max(distances) <= self.tolerance, f"{distances}; stock vLLM's own: {self.own}"
        other = sum(reply.tokens != cold.tokens for reply, cold in zip(replies, expected, strict=True))
        most = max(1, max(MOST_OTHER, 2 * self.other) * len(turns))
        assert other <= most, f"{other} of {len(turns)} replies have other tokens; stock vLLM's own: {self.other}"


@dataclass(frozen=True, slots=True)
class Starting:
    """Both engines of a pair as they start, beside each other and those of other pairs."""

    model: str
    options: dict[str, Any]
    engine: EngineAlone
    cold: EngineAlone
    scale: int
    sampling: Sampling

    def wait(self) -> Pair:
        """Skip the test if vLLM's own engine does not start either."""
        cold, ours = _find_failure(self.cold), _find_failure(self.engine)
        if ours is not None:
            options = self.options | {"scheduler": None, "num_gpu_blocks_override": ROOMY}
            with EngineAlone(self.model, **options) as stock:
                stocks = _find_failure(stock)
            if stocks is None:
                pytest.fail(f"stock vLLM starts, and ours does not:\n{ours}", pytrace=False)
            pytest.skip(f"stock vLLM does not start here: {stocks.reason}")
        if cold is not None:
            pytest.fail(f"stock vLLM does not start without prefix caching:\n{cold}", pytrace=False)
        own, other = _measure(self.cold, self.scale, self.sampling)
        assert own < MOST, "the kernels do not repeat themselves well enough for this test"
        return Pair(self.engine, self.cold, own, other)


@contextmanager
def start_pair(model: str, scale: int = 1, sampling: Sampling | None = None, **options: Any) -> Iterator[Starting]:
    """Start both with `options`, which may differ from `SERVED`; prompts will be about `scale` times as long.

    `sampling` is that of the jobs: of few tokens, which are unlikely, the logprobs of stock vLLM's own batches differ
    more than those of free replies.
    """
    options = SERVED | options
    with ExitStack() as stack:
        cold = stack.enter_context(EngineAlone(model, **options | COLD))
        engine = stack.enter_context(EngineAlone(model, **options))
        yield Starting(model, options, engine, cold, scale, sampling or {})


def _find_failure(engine: EngineAlone) -> EngineFailedError | None:
    try:
        engine.wait()
    except EngineFailedError as error:
        return error
    return None


def _measure(cold: EngineAlone, scale: int, sampling: Sampling) -> tuple[float, float]:
    requests = [(make_prompt(seed, tokens=scale * (100 + 20 * seed)), 24) for seed in range(MEASURED)]
    together, alone = (cold.call(ask, requests, sampling) for ask in (ask_together, ask_alone))
    pairs = list(zip(together, alone, strict=True))
    other = sum(reply.tokens != alone.tokens for reply, alone in pairs) / len(pairs)
    return max(find_distance(*pair) for pair in pairs), other
