"""gpt-oss on a GPU: sliding windows and full attention in turns, attention sinks, experts; gaps are filled in both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from asked_alone import ask_anew, ask_behind_gap, run_jobs
from engine_pair import Pair, start_pair
from gpu_models import make_gpu_model
from live_engine import BLOCK, make_prompt

pytestmark = pytest.mark.engine

# Of the cache: about a third of what the jobs below leave in it.
BLOCKS = 60
PROMPT = make_prompt(seed=1, tokens=18 * BLOCK + 7)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = make_gpu_model("gpt-oss", tmp_path_factory.mktemp("gpt-oss"))
    # Small steps, so that windows are left behind in mid-prompt.
    options = {"max_model_len": 26 * BLOCK, "max_num_batched_tokens": 4 * BLOCK}
    with start_pair(path, num_gpu_blocks_override=BLOCKS, **options) as starting:
        yield starting.wait()


def test_the_two_engines_agree_before_any_gap(pair: Pair) -> None:
    """If they do not, what the other tests find is not about gaps."""
    requests = [(make_prompt(seed, tokens=200 + 150 * (seed % 3)), 16) for seed in range(20, 26)]
    requests.append((PROMPT, 16))
    for asked in (requests[-1:], requests):
        replies = pair.engine.call(ask_anew, asked)
        assert [reply.cached for reply in replies] == [0] * len(asked)
        pair.assert_near_cold([(*request, reply) for request, reply in zip(asked, replies, strict=True)])


@pytest.mark.parametrize("gap", [[0], [5], [3, 4, 11], list(range(14))], ids=["first", "one", "two", "long"])
def test_reply_behind_gaps_before_a_window(gap: list[int], pair: Pair) -> None:
    before, reply, filled = pair.engine.call(ask_behind_gap, PROMPT, gap)
    pair.assert_near_cold([(PROMPT, 16, before)])
    assert filled >= len(gap) * BLOCK
    assert reply.cached >= (17 - max(gap)) * BLOCK
    pair.assert_near_cold([(PROMPT, 16, reply)])


@pytest.mark.parametrize("policy", ["asymcache", "agentcache"])
def test_replies_of_jobs_with_windows(policy: str, pair: Pair) -> None:
    ran = pair.engine.call(run_jobs, "windows", policy)
    assert ran.segments >= 2
    assert ran.evicted
    pair.assert_near_cold(ran.turns)
