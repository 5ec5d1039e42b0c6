from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_job import CharacterTokenizer

from agentcache.jobs.context_job import ContextJob, ContextWriter, find_ordinary_tokens
from agentcache.jobs.tokenizer import LocalTokenizer
from tool_runtime.agent.job import Context, Job, Turn

VOCABULARY = range(1000, 4000)
WRITER = ContextWriter(VOCABULARY)
BLOCK = 16

blocks = st.lists(st.integers(-5, 10**12), min_size=1, max_size=6).map(tuple)


@st.composite
def contexts(draw: st.DrawFn) -> Context:
    ids = draw(blocks)
    return Context(ids, BLOCK, len(ids) * BLOCK - draw(st.integers(0, BLOCK - 1)), draw(st.integers(1, 40)))


def make_job(*made: Context) -> ContextJob:
    return ContextJob(Job("job-0", (), turns=tuple(Turn(context=context) for context in made)), WRITER)


@given(contexts())
def test_a_prompt_is_its_blocks_in_order_and_ends_in_the_last(context: Context) -> None:
    prompt = WRITER.write(context)
    alone = [WRITER.write(Context((block,), BLOCK, BLOCK, 1)) for block in context.blocks]
    assert prompt == [token for block in alone for token in block][: context.tokens]
    assert len(prompt) == context.tokens
    assert set(prompt) <= set(VOCABULARY)


@given(contexts(), st.data())
def test_a_piece_of_a_prompt_is_what_stands_there(context: Context, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, context.tokens - 1))
    stop = data.draw(st.integers(start, context.tokens + 40))
    assert WRITER.write(context, start, stop) == WRITER.write(context)[start:stop]


@given(st.sets(st.integers(0, 2**40), min_size=2, max_size=30))
def test_blocks_are_equal_exactly_if_their_ids_are(ids: set[int]) -> None:
    written = {tuple(WRITER.write(Context((block,), BLOCK, BLOCK, 1))) for block in ids}
    assert len(written) == len(ids)
    assert written == {tuple(ContextWriter(VOCABULARY).write(Context((block,), BLOCK, BLOCK, 1))) for block in ids}


def test_tokens_of_a_block_never_change() -> None:
    """Runs of different days and machines must be comparable."""
    assert WRITER.write(Context((7,), 4, 4, 1)) == [2064, 3605, 1191, 2510]
    assert WRITER.fill("job-0/1", 3) == [1586, 2656, 1169]


@given(st.data())
def test_prompts_in_a_row_are_those_written_alone(data: st.DataObject) -> None:
    made = [data.draw(contexts())]
    for _ in range(data.draw(st.integers(0, 4))):
        before = made[-1]
        kept = before.blocks[: data.draw(st.integers(0, len(before.blocks)))]
        ids = (*kept, *data.draw(blocks))
        made.append(Context(ids, BLOCK, len(ids) * BLOCK - data.draw(st.integers(0, BLOCK - 1)), 1))
    job = make_job(*made)
    assert list(job.prompts()) == [job.prompt(turn) for turn in range(len(made))]


def test_the_reply_is_what_the_next_prompt_has_behind_this_one() -> None:
    job = make_job(Context((1, 2), BLOCK, 20, 10), Context((1, 2, 3), BLOCK, 40, 5))
    known = job.prompt(0) + job.reply(0)
    assert len(known) == 30
    assert job.prompt(1)[:30] == known
    assert len(job.reply(1)) == 5


def test_a_reply_known_in_part_from_the_next_prompt_is_filled_up() -> None:
    job = make_job(Context((1, 2), BLOCK, 20, 10), Context((1, 2), BLOCK, 24, 1))
    assert job.reply(0)[:4] == job.prompt(1)[20:]
    assert len(job.reply(0)) == 10


@pytest.mark.parametrize(
    "following",
    [
        Context((1, 9, 3), BLOCK, 40, 5),
        Context((1, 2), BLOCK, 20, 5),
        Context((1,), BLOCK, 10, 5),
        Context((1, 2, 3), 2 * BLOCK, 80, 5),
    ],
    ids=["rewritten", "as long", "cut", "other blocks"],
)
def test_a_reply_that_no_prompt_continues_is_its_own_filler(following: Context) -> None:
    job = make_job(Context((1, 2), BLOCK, 20, 10), following, Context((5,), BLOCK, 9, 10))
    assert len(job.reply(0)) == 10
    assert job.reply(0) == make_job(Context((8,), BLOCK, 3, 10)).reply(0), "it depends on job and turn alone"
    assert job.reply(0) != job.reply(2)


def test_tokens_of_a_job_are_its_largest_prompt_and_reply() -> None:
    assert make_job(Context((1, 2), BLOCK, 20, 30), Context((1, 2, 3), BLOCK, 40, 5)).tokens == 50


def test_ordinary_tokens_are_many_and_none_is_special(tiny_model_path: str) -> None:
    tokenizer = LocalTokenizer(tiny_model_path)
    found = find_ordinary_tokens(tokenizer)
    assert len(found) > 500
    assert not set(found) & set(tokenizer.encode("<|im_start|><|im_end|>"))
    assert min(find_ordinary_tokens(CharacterTokenizer())) >= ord(" ")
