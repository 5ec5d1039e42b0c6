"""What holds for a model of any family: replies of jobs whose blocks are reused and lost are those of a cold engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asked_alone import Ran, Sampling, ask_anew, ask_with_wrong_block, describe, run_jobs
from engine_pair import Pair
from live_engine import make_prompt
from served import find_distance

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
# A reply of so few tokens repeats itself, so that some drafts are right and some are not.
FEW_TOKENS: Sampling = {"allowed_token_ids": [11, 222, 3333]}
# Of prompts of which a block becomes that of the prompt with the next seed.
WRONGED_SEEDS = range(1, 12, 2)


@dataclass(frozen=True, slots=True)
class Family:
    """`blocks` is a third to a half of what the jobs leave; prompts are `scale` times as long as with blocks of 32."""

    model: str
    blocks: int
    kind: str = "full"
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=dict)
    scale: int = 1

    @property
    def fills_gaps(self) -> bool:
        return self.kind != "states"

    @property
    def has_drafts(self) -> bool:
        return "speculative_config" in self.options

    @property
    def engine_options(self) -> dict[str, Any]:
        return {"max_num_batched_tokens": 128, "num_gpu_blocks_override": self.blocks, **self.options}


def check_served(pair: Pair) -> None:
    served = pair.engine.call(describe)
    assert served.has_graphs
    assert served.caches_prefixes
    # vLLM decides, by the kind of drafts.
    assert served.schedules_ahead == pair.cold.call(describe).schedules_ahead


def check_before_reuse(family: Family, pair: Pair) -> None:
    """If engines do not agree here, what `check_jobs` finds is not about reuse."""
    lengths = [family.scale * (200 + 100 * (seed % 4)) for seed in range(8)]
    requests = [(make_prompt(seed, tokens), 16) for seed, tokens in enumerate(lengths, start=20)]
    replies = pair.engine.call(ask_anew, requests)
    assert [reply.cached for reply in replies] == [0] * len(requests)
    pair.assert_near_cold([(*request, reply) for request, reply in zip(requests, replies, strict=True)])


def check_jobs(family: Family, pair: Pair) -> None:
    ran = pair.engine.call(run_jobs, family.kind, sampling=family.sampling, scale=family.scale)
    assert_eventful(family, ran)
    pair.assert_near_cold(ran.turns, family.sampling)


def assert_eventful(family: Family, ran: Ran) -> None:
    """Blocks were hit, filled and lost: replies must be the same either way."""
    assert len(ran.turns) == 24
    assert ran.cached > 0
    assert ran.evicted > 0
    assert ran.preempted > 0
    assert ran.resets > 0
    assert 0.25 < ran.share < 0.55
    assert (ran.accepted > 0) == family.has_drafts
    if family.fills_gaps:
        assert ran.fill_tokens > 100
        assert ran.segments > 2


def check_wrong_block(pair: Pair) -> None:
    """Of several prompts with a wrong block, one is seen: as in `check_jobs`, what differs most counts.

    Their right replies are compared all at once, too: of one prompt, both may well be others than the cold engine's.
    """
    all_wronged = [pair.engine.call(ask_with_wrong_block, group=0, seed=seed) for seed in WRONGED_SEEDS]
    for wronged in all_wronged:
        assert wronged.again.cached == wronged.wrong.cached > 0
    right = [(each.prompt, 16, reply) for each in all_wronged for reply in (each.first, each.again)]
    pair.assert_near_cold(right)
    distances = [find_distance(each.wrong, each.again) for each in all_wronged]
    assert max(distances) > pair.tolerance, f"{distances}; stock vLLM's own: {pair.own}"
