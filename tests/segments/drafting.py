"""An engine whose tokens are drafted by ngram, for a process of its own."""

from __future__ import annotations

import os
from typing import NamedTuple

from live_engine import BLOCK, LiveEngine, Reply, make_prompt

PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)
GAP = [2, 3, 9]
OTHERS = [make_prompt(seed, 70) for seed in (5, 6)]
# A reply of so few repeats itself, so that some drafts are right and some are not.
FEW_TOKENS = [11, 222, 3333]


class Seen(NamedTuple):
    """`replies` are those of each round to `PROMPT`, behind gaps, and to `OTHERS`."""

    replies: list[list[Reply]]
    fill_tokens: int
    accepted: int


def ask_with_drafts(model: str) -> Seen:
    # To compile what looks for drafts takes longer than all else here.
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    engine = LiveEngine(model, speculative_config=drafts)
    engine.ask(PROMPT, 60, allowed_token_ids=FEW_TOKENS)
    rounds = []
    for _ in range(2):
        engine.forget(PROMPT, GAP)
        names = [engine.add(prompt, 60, allowed_token_ids=FEW_TOKENS) for prompt in (PROMPT, *OTHERS)]
        engine.finish()
        rounds.append([engine.reply(name) for name in names])
    stats = [stats.spec_decoding_stats for stats in engine.stats[0].scheduler if stats.spec_decoding_stats]
    return Seen(rounds, engine.fill_tokens, sum(each.num_accepted_tokens for each in stats))
