from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from belady import make_clairvoyant
from future_uses import NO_PATTERN, FutureJob, FutureUses, hash_prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from made_simulation import ConstantGpu, make_engine, make_turn, record
from sizes import pick_size

from agentcache.jobs.recorded_job import PromptWriter
from agentcache.jobs.tokenizer import LocalTokenizer

BLOCK = 16
# A prompt of up to six blocks of which each has one of two contents: chains that part and meet again in other jobs.
PROMPTS = st.lists(st.text("xy", max_size=6).map(lambda text: [text[:end].encode() for end in range(1, len(text) + 1)]))


def hash_block(before: bytes | None, tokens: Sequence[int]) -> bytes:
    return (before or b"") + bytes(tokens)


def look_up(future: FutureUses, block: bytes) -> float:
    return float(future.next_use_s()[future.pattern_of(block)])


@given(jobs=st.lists(PROMPTS.filter(bool), min_size=1, max_size=4), data=st.data())
@settings(max_examples=pick_size(50, 150))
def test_next_use_is_the_first_turn_to_come_that_has_the_block(
    jobs: list[list[list[bytes]]], data: st.DataObject
) -> None:
    steps = [[float(data.draw(st.integers(0, 9))) for _ in prompts[:-1]] for prompts in jobs]
    future = FutureUses([FutureJob(str(job), *both) for job, both in enumerate(zip(jobs, steps, strict=True))])
    expected: dict[bytes, float] = {}
    for job, prompts in enumerate(jobs):
        turn = data.draw(st.integers(0, len(prompts)))
        if turn == len(prompts):
            future.ended(str(job))
            continue
        time_s = float(data.draw(st.integers(0, 100)))
        future.due(str(job), turn, time_s)
        for number in range(turn, len(prompts)):
            for block in prompts[number]:
                sent_s = time_s + sum(steps[job][turn:number])
                expected[block] = min(expected.get(block, math.inf), sent_s)
    for block in {block for prompts in jobs for prompt in prompts for block in prompt}:
        assert look_up(future, block) == expected.get(block, math.inf)


def test_blocks_with_the_same_requests_are_one_pattern() -> None:
    long, short = [b"1", b"2", b"3", b"4"], [b"1", b"2"]
    future = FutureUses([FutureJob("job", [short, long], [1.0]), FutureJob("other", [[b"1"]], [])])
    patterns = [future.pattern_of(block) for block in long]
    assert patterns[2] == patterns[3]
    assert len(set(patterns)) == 3
    assert future.pattern_of(b"5") == NO_PATTERN


def test_only_recorded_uses_are_expected_and_once_they_are_told() -> None:
    future = FutureUses([FutureJob("job", [[b"1"]], [])])
    assert look_up(future, b"1") == math.inf
    future.due("job", 0, 3.0)
    assert look_up(future, b"1") == 3.0
    assert look_up(future, b"2") == math.inf


@given(prompts=st.lists(st.lists(st.integers(0, 1), max_size=40), max_size=4))
def test_prompts_have_the_same_hashes_one_by_one(prompts: list[list[int]]) -> None:
    alone = [next(hash_prompts([prompt], 4, hash_block)) for prompt in prompts]
    assert list(hash_prompts(prompts, 4, hash_block)) == alone


def test_blocks_are_known_by_the_engine_s_hashes(tiny_model_path: str) -> None:
    tokenizer = LocalTokenizer(tiny_model_path)
    turns = make_turn("I look around. " * 9, 2.0), make_turn("Once more. " * 9, 1.0, 4.0), make_turn("Well.")
    job = record(tokenizer, "one", 0.0, *turns)
    prompts = PromptWriter(tokenizer)
    engine = make_engine(tiny_model_path)
    future = make_clairvoyant(engine, [job], prompts, ConstantGpu())
    last = list(prompts.write(job))[-1]
    engine.add("last", last, [1, 2])
    hashes = engine.scheduler.requests["last"].block_hashes
    assert len(hashes) == len(last) // BLOCK
    future.due("one", 0, 100.0)
    assert NO_PATTERN not in {future.pattern_of(key) for key in hashes}
    # Every step takes a second and gives one token; then come the tools.
    second_s = 100.0 + len(job.reply(0)) + 2.0
    third_s = second_s + len(job.reply(1)) + 4.0
    uses = [look_up(future, key) for key in hashes]
    assert uses == sorted(uses)
    assert sorted(set(uses)) == pytest.approx([100.0, second_s, third_s])
