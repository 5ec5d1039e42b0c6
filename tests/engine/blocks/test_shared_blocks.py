"""A system prompt is kept for the job that waits, whoever used it last."""

from __future__ import annotations

from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import SEARCH, make_lone, tokens_of

from tool_runtime.agent.job import ToolCall

SYSTEM_BLOCKS = 4


def do_turn(lone: LoneScheduler, session: str, turn: int, prompt: list[int], *calls: ToolCall) -> list[int]:
    """In less than half a second; the tokens of prompt and reply."""
    name = f"{session}-{turn}"
    lone.add(name, prompt, output_tokens=17, calls=calls, session_id=session)
    for _ in range(40):
        lone.scheduler.clock.now_s += 0.01
        step = lone.step()
        lone.scheduler.check_integrity()
        if name in step.finished:
            return step.finished[name]
    raise AssertionError("the turn does not end")


def teach(lone: LoneScheduler, jobs: int) -> None:
    """A search takes two seconds; what an answered job has left is evicted in vain."""
    for job in range(jobs):
        known = do_turn(lone, f"teacher {job}", 0, tokens_of(100 + job, 100), SEARCH)
        lone.scheduler.clock.now_s += 2
        do_turn(lone, f"teacher {job}", 1, [*known, *tokens_of(300 + job, 20)])
        lone.scheduler.clock.now_s += 30
        do_turn(lone, f"filler {job}", 0, tokens_of(1000 + job, 400))


def test_a_waiting_job_keeps_blocks_shared_with_an_answered_one(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "agentcache", blocks=200, pins={"enabled": False}, tuning={"row_s": 0.0})
    teach(lone, jobs=20)
    system = tokens_of(7, SYSTEM_BLOCKS * BLOCK_SIZE)
    waiting = do_turn(lone, "waits", 0, [*system, *tokens_of(8, 96)], SEARCH)
    answered = do_turn(lone, "answered", 0, [*system, *tokens_of(9, 96)])
    free = [block.block_id for block in lone.pool.free_block_queue.get_all_free_blocks()]
    kept, own = lone.find_blocks(waiting), lone.find_blocks(answered)[SYSTEM_BLOCKS:]
    assert kept[:SYSTEM_BLOCKS] == lone.find_blocks(answered)[:SYSTEM_BLOCKS]
    assert sorted(free[-len(kept) :]) == sorted(kept), "the last to go"
    assert own
    assert not set(own) & set(kept)
