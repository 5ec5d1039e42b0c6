"""A client summarises, cuts or edits its history: it is told, and what it left is worth nothing from then on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chats import SYSTEM, Messages, begin, do, find_hashes, finish, render, reply_of
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import learn_that_tools_are_fast, make_patient, tokens_of

from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import count_runtime, view_session
from agentcache.engine.views import JobView

TASK = ("u", tokens_of(2, 20))
SUM_UP = ("u", tokens_of(3, 20))


def result(number: int, tokens: int = 30) -> tuple[str, list[int]]:
    return "t", tokens_of(100 + number, tokens)


def make(model_path: str, blocks: int = 120, in_flight: int = 1) -> LoneScheduler:
    """What finished turns left is pinned for as long as nothing goes on from it."""
    lone = make_patient(model_path, "agentcache", blocks, in_flight=in_flight, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    return lone


def work(lone: LoneScheduler, name: str, turns: int = 2, **options: object) -> Messages:
    """An agent that waits for its last call."""
    messages: Messages = [SYSTEM, ("u", tokens_of(sum(map(ord, name)), 20))]
    for turn in range(turns):
        messages = do(lone, f"{name} {turn}", [*messages, *([result(turn)] if turn else [])], **options)
    return messages


def view(lone: LoneScheduler, session: str = "s") -> JobView:
    (job,) = view_session(lone.scheduler.tracker, session)
    return job


def find_free(lone: LoneScheduler) -> list[bytes]:
    """The hashes of free blocks with KV, next victim first."""
    free = lone.pool.free_block_queue.get_all_free_blocks()
    return [block.block_hash[:-4] for block in free if block.block_hash is not None]


def are_first(lone: LoneScheduler, left: Sequence[bytes]) -> bool:
    return set(find_free(lone)[: len(left)]) == set(left)


def summarise(lone: LoneScheduler, history: Messages, text: list[int] | None = None) -> Messages:
    """The summarising call, and the prompt with its text."""
    do(lone, "summary", [*history, result(9), SUM_UP], is_answer=True)
    return [SYSTEM, ("u", [*tokens_of(4, 9), *(text or reply_of("summary")), 11])]


def test_a_summary_is_told_with_its_cause_and_cost(tiny_model_path: str) -> None:
    lone = make(tiny_model_path)
    prompt = summarise(lone, work(lone, "main"))
    before = view(lone)
    do(lone, "after", prompt)
    job = view(lone)
    change = job.turns[-1].change
    assert change is not None
    assert change.cause == "history summarised"
    left = sum(before.turns[-1].__getattribute__(name) for name in ("prompt_tokens", "output_tokens"))
    assert change.left_tokens == (left - 1) // BLOCK_SIZE * BLOCK_SIZE - change.at_token
    assert count_runtime(lone.scheduler.tracker).left_tokens == {"history summarised": change.left_tokens}
    assert job.waits_for == ("search",), "it waits for the call behind the summary alone"
    release(lone.scheduler.tracker, "s")
    (ended,) = view_session(lone.scheduler.tracker, "s", with_ended=True)
    assert ended.summary is not None
    assert ended.summary.left_tokens == {"history summarised": change.left_tokens}


@pytest.mark.parametrize("cut_off", [2, 16])
def test_a_summary_without_its_last_words_is_known(tiny_model_path: str, cut_off: int) -> None:
    """Clients cut off the tag that ends it, or the last token is another with what stands behind."""
    lone = make(tiny_model_path)
    do(lone, "after", summarise(lone, work(lone, "main"), reply_of("summary")[:-cut_off]))
    change = view(lone).turns[-1].change
    assert change is not None
    assert change.cause == "history summarised"


def test_the_summarising_call_finds_its_whole_context(tiny_model_path: str) -> None:
    """It is the next turn of its job, so the pin of the turn before keeps its context for it, however long that is."""
    lone = make(tiny_model_path, blocks=50)
    history = work(lone, "main", turns=5)
    size = len(find_hashes(lone, history))
    assert size > 20
    for number in range(4):
        do(lone, f"other {number}", [SYSTEM, ("u", tokens_of(50 + number, 300))], session=f"{number}")
    prompt = begin(lone, "summary", [*history, result(9), SUM_UP], is_answer=True)
    steps = []
    while not lone.idle:
        lone.scheduler.clock.now_s += 0.1
        steps.append(lone.step())
    (hit,) = [step.hit_tokens["s/summary"] for step in steps if "s/summary" in step.hit_tokens][:1]
    assert hit >= size * BLOCK_SIZE - BLOCK_SIZE
    assert len(prompt) - hit < 6 * BLOCK_SIZE


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("change", ["summarised", "truncated", "edited"])
def test_what_was_left_goes_first_and_the_rest_stays(tiny_model_path: str, change: str, in_flight: int) -> None:
    lone = make(tiny_model_path, blocks=100, in_flight=in_flight)
    other = work(lone, "other", session="other")
    history = work(lone, "main", turns=4)
    if change == "summarised":
        prompt = summarise(lone, history)
        history = [*history, result(9), SUM_UP, ("a", reply_of("summary"))]
    elif change == "truncated":
        prompt = [SYSTEM, *history[-4:], result(9)]
    else:
        prompt = [*history[:3], ("t", [12]), *history[4:], result(9)]
    old, new = find_hashes(lone, history), lone.make_request("", render(prompt)).block_hashes
    shared = sum(one == two for one, two in zip(old, new, strict=False))
    # The last block of a reply is full, and not computed whole.
    left = [each for each in old[shared:] if each in find_free(lone)]
    assert len(left) >= 5
    assert not are_first(lone, left)
    pinned = [pin.owner for pin in lone.scheduler.tracker.pins]
    begin(lone, "after", prompt)
    # Before anything is computed for it.
    lone.scheduler.frees.step()
    assert are_first(lone, left)
    now = [pin.owner for pin in lone.scheduler.tracker.pins]
    assert [owner for owner in pinned if owner not in now] == ["s/summary" if change == "summarised" else "s/main 3"]
    finish(lone)
    turn = view(lone).turns[-1]
    assert turn.cached_tokens == shared * BLOCK_SIZE
    assert turn.change is not None
    assert turn.change.cause == f"history {change}"
    assert set(find_hashes(lone, other)[:-1]) <= set(find_free(lone)), "the other job lost nothing"


def test_a_cut_history_is_known_by_its_last_result(tiny_model_path: str) -> None:
    """Its reply comes back in other words, and another agent of the session waits as well."""
    lone = make(tiny_model_path)
    history, _ = work(lone, "main", turns=4), work(lone, "beside")
    assert view(lone).waits_for == ("search", "search")
    do(lone, "after", [SYSTEM, *history[-4:-1], ("a", [13, 14]), result(9)], is_answer=True)
    change = view(lone).turns[-1].change
    assert change is not None
    assert (change.cause, view(lone).waits_for) == ("history truncated", ("search",))


@pytest.mark.parametrize("waits", [True, False])
def test_what_others_have_of_a_branch_they_keep(tiny_model_path: str, waits: bool) -> None:
    """A second sample of the job, whose tool is out, or whose next request waits in the queue."""
    lone = make(tiny_model_path, blocks=100)
    history, sample = work(lone, "main", turns=4), work(lone, "main", turns=4, session="sample")
    left, theirs = find_hashes(lone, history), find_hashes(lone, sample)[:-1]
    if waits:
        begin(lone, "next", [*sample, result(8)], session="sample")
    begin(lone, "after", [SYSTEM, *history[-4:], result(9)])
    order = [each for each in find_free(lone) if each in theirs or each not in left]
    lone.scheduler.frees.step()
    assert [each for each in find_free(lone) if each in theirs or each not in left] == order
    finish(lone)
    assert view(lone).turns[-1].change is not None
    if waits:
        turn = view(lone, "sample").turns[-1]
        assert turn.cached_tokens >= len(theirs) * BLOCK_SIZE - BLOCK_SIZE
    assert set(theirs) <= {block.block_hash[:-4] for block in lone.pool.blocks if block.block_hash is not None}


def test_an_agent_that_forked_keeps_what_it_has_of_it(tiny_model_path: str) -> None:
    lone = make(tiny_model_path, blocks=100)
    history = work(lone, "main", turns=4)
    forked = do(lone, "fork", [*history[:5], result(7)], agent="a-1")
    begin(lone, "after", [SYSTEM, *history[-4:], result(9)])
    lone.scheduler.frees.step()
    free, theirs = find_free(lone), find_hashes(lone, forked)
    left = [each for each in find_hashes(lone, history) if each in free and each not in theirs]
    assert len(left) > 5
    assert are_first(lone, left)
    finish(lone)
    do(lone, "fork again", [*forked, result(8)], agent="a-1")
    assert view(lone).turns[-1].cached_tokens >= len(find_hashes(lone, forked)) * BLOCK_SIZE - BLOCK_SIZE


@pytest.mark.parametrize("session", ["thief", None])
@pytest.mark.parametrize("salt", ["theirs", None])
def test_a_quote_of_another_job_touches_nothing(tiny_model_path: str, session: str | None, salt: str | None) -> None:
    lone = make(tiny_model_path)
    prompt = summarise(lone, work(lone, "main"))
    pins, order = [pin.owner for pin in lone.scheduler.tracker.pins], find_free(lone)
    begin(lone, "quote", prompt, session=session, cache_salt=salt)
    lone.scheduler.frees.step()
    assert ([pin.owner for pin in lone.scheduler.tracker.pins], find_free(lone)) == (pins, order)
    finish(lone)
    assert "s/summary" in [pin.owner for pin in lone.scheduler.tracker.pins]


@pytest.mark.parametrize("how", ["a call's text", "another system message", "other words"])
def test_without_certain_evidence_a_prompt_begins_a_chat(tiny_model_path: str, how: str) -> None:
    lone = make(tiny_model_path)
    history = work(lone, "main")
    if how == "a call's text":
        prompt: Messages = [SYSTEM, ("u", [*reply_of("main 1"), 11])]
    else:
        prompt = summarise(lone, history)
    if how == "another system message":
        prompt = [("s", [*SYSTEM[1][:-2], 5, 6]), *prompt[1:]]
    elif how == "other words":
        prompt = [SYSTEM, ("u", tokens_of(70, 40))]
    pins = [pin.owner for pin in lone.scheduler.tracker.pins]
    begin(lone, "new", prompt)
    lone.scheduler.frees.step()
    assert [pin.owner for pin in lone.scheduler.tracker.pins] == pins
    finish(lone)
    assert view(lone).turns[-1].change is None


def test_a_retry_leaves_the_first_reply_its_worth(tiny_model_path: str) -> None:
    """The prompt has the turn's messages and no reply: the client may still take the first."""
    lone = make(tiny_model_path)
    history = work(lone, "main")
    order = find_free(lone)
    begin(lone, "again", history[:-1])
    lone.scheduler.frees.step()
    assert find_free(lone) == order
    finish(lone)


def test_a_reset_forgets_what_was_left(tiny_model_path: str) -> None:
    lone = make(tiny_model_path)
    history = work(lone, "main", turns=4)
    begin(lone, "after", [SYSTEM, *history[-4:], result(9)])
    assert lone.scheduler.tracker.finder.left
    assert lone.scheduler.reset_prefix_cache()
    assert not lone.scheduler.tracker.finder.left
    finish(lone)
