"""Which job a request without a session belongs to, as its messages tell."""

from __future__ import annotations

import pytest
from told_requests import answer, ask_told
from tracked_requests import BLOCK, Tracked
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.rpc.job_views import count_runtime, view_session

SYSTEM = ("s", [1] * 3 * BLOCK)
Chat = list[tuple[str, list[int]]]


def question(*words: int) -> tuple[str, list[int]]:
    return ("u", list(words))


def count_jobs(tracked: Tracked) -> int:
    return len(tracked.runtime.jobs)


def run_turn(tracked: Tracked, name: str, chat: Chat) -> Request:
    request = ask_told(tracked, name, chat)
    answer(tracked, request)
    return request


@pytest.mark.parametrize(
    "echo", [[7, 8], [], [9] * 3 * BLOCK], ids=["reasoning left out", "empty", "arguments in other JSON"]
)
def test_a_job_goes_on_however_its_reply_comes_back(echo: list[int]) -> None:
    tracked = Tracked()
    chat: Chat = [SYSTEM, question(20, 21)]
    for turn in range(4):
        run_turn(tracked, f"turn {turn}", chat)
        chat = [*chat, ("a", [*echo, turn]), ("t", [30 + turn] * BLOCK)]
    assert count_jobs(tracked) == 1
    assert count_runtime(tracked.tracker).found_jobs == {"first": 1, "repeated": 3}
    tracked.tracker.check_integrity()


def test_another_question_after_the_same_system_message_is_new() -> None:
    tracked = Tracked()
    run_turn(tracked, "one", [SYSTEM, question(20)])
    run_turn(tracked, "two", [SYSTEM, question(21)])
    assert count_jobs(tracked) == 2
    run_turn(tracked, "three", [SYSTEM, question(20), ("a", [9]), question(22)])
    run_turn(tracked, "four", [SYSTEM, question(21), ("a", [9]), question(22)])
    assert count_jobs(tracked) == 2


def test_the_same_question_again_is_another_job() -> None:
    tracked = Tracked()
    for name in ("one", "two"):
        run_turn(tracked, name, [SYSTEM, question(20)])
    assert count_jobs(tracked) == 2


def test_a_prompt_without_a_reply_in_it_goes_on_from_none() -> None:
    """What warms the cache up is not everybody's first turn."""
    tracked = Tracked()
    run_turn(tracked, "warms up", [SYSTEM])
    run_turn(tracked, "first", [SYSTEM, question(20)])
    assert count_jobs(tracked) == 2


def test_a_job_goes_on_after_a_reply_that_was_cut_off() -> None:
    tracked = Tracked()
    request = ask_told(tracked, "cut off", [SYSTEM, question(20)], calls=None)
    tracked.admit(request)
    request.status = request.status.FINISHED_ABORTED
    tracked.tracker.on_free(request)
    run_turn(tracked, "again", [SYSTEM, question(20), ("a", [9]), question(22)])
    assert count_jobs(tracked) == 1


def test_a_turn_may_be_cut_off_before_its_last_hash() -> None:
    # With EAGLE or MTP the hash of a prompt's last full block waits for the first token of the reply, in vLLM 0.33.
    tracked = Tracked()
    request = ask_told(tracked, "cut off", [question(20, 21, 22)])
    tracked.admit(request)
    assert request.num_prompt_tokens // BLOCK == len(request.block_hashes) == 1
    request.block_hashes.clear()
    request.status = RequestStatus.FINISHED_ABORTED
    tracked.tracker.on_free(request)
    assert count_jobs(tracked) == 1


def test_tenants_with_the_same_words_share_no_job() -> None:
    tracked = Tracked()
    answer(tracked, ask_told(tracked, "one", [SYSTEM, question(20)], salt="a"))
    answer(tracked, ask_told(tracked, "two", [SYSTEM, question(20), ("a", [9]), question(22)], salt="b"))
    assert count_jobs(tracked) == 2


def test_a_request_joins_the_job_of_the_response_that_it_names() -> None:
    tracked = Tracked()
    answer(tracked, ask_told(tracked, "resp_1_0-0123abcd", [SYSTEM, question(20)]))
    answer(tracked, ask_told(tracked, "resp_2_0-4567abcd", [question(99)], after="resp_1"))
    answer(tracked, ask_told(tracked, "resp_3_0-4567abcd", [question(98)], after="resp_2"))
    assert count_jobs(tracked) == 1
    assert count_runtime(tracked.tracker).found_jobs == {"first": 1, "response": 2}
    answer(tracked, ask_told(tracked, "resp_4_0-4567abcd", [question(97)], after="resp_1", salt="other"))
    assert count_jobs(tracked) == 2


def test_a_warning_tells_once_that_most_are_unmatched(vllm_log: pytest.LogCaptureFixture) -> None:
    tracked = Tracked()
    for number in range(150):
        run_turn(tracked, f"lost {number}", [SYSTEM, question(20 + number), ("a", [9]), question(22)])
    assert count_runtime(tracked.tracker).found_jobs == {"unmatched": 150}
    assert vllm_log.text.count("matched with no job") == 1


@pytest.mark.parametrize("ignores_end", [False, True])
def test_a_session_whose_first_message_changes_is_one_chat(*, ignores_end: bool) -> None:
    """A date in the system message: the prompts share nothing, and yet it is no sub-agent's first."""
    tracked = Tracked()
    for name, word, more in (("one", 5, []), ("two", 6, [("a", [9]), question(21)])):
        messages = [("s", [word] * 9 * BLOCK), question(20), *more]
        answer(tracked, ask_told(tracked, name, messages, session="s", ignores_end=ignores_end))
    (view,) = view_session(tracked.tracker, "s")
    assert view.turns[1].change is not None
    assert (view.turns[1].change.cause, view.turns[1].change.role) == ("system message changed", "system")
    answer(tracked, ask_told(tracked, "sub", [("s", [7] * 9 * BLOCK), question(20)], session="s"))
    (view,) = view_session(tracked.tracker, "s")
    assert view.turns[2].change is None
