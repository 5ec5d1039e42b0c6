"""Whom vLLM preempts under a policy that chooses, and that choosing takes no tokens from anybody."""

from __future__ import annotations

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import STEERED, do_turn_in_no_time, make_lone, run_until_idle, tokens_of


def run_until_preemption(lone: LoneScheduler) -> list[str]:
    for _ in range(40):
        lone.scheduler.clock.now_s += 0.01
        preempted: list[str] = lone.step().preempted
        lone.scheduler.check_integrity()
        if preempted:
            return preempted
    raise AssertionError("nobody was preempted")


# Blocks of 16 tokens: the long request has 10 of them and asks for the 11th when the short one has taken the last.
@pytest.mark.parametrize(("policy", "victim"), [("lru", "last"), ("agentcache", "short"), ("continuum-code", "short")])
def test_who_is_preempted(tiny_model_path: str, policy: str, victim: str) -> None:
    lone = make_lone(tiny_model_path, policy, blocks=1 + 10 + 4 + 7)
    # Of an older job than the others.
    do_turn_in_no_time(lone, "before", tokens_of(9, 4), session_id="last")
    for name, tokens in (("long", 150), ("short", 40), ("last", 100)):
        lone.scheduler.clock.now_s += 0.01
        lone.add(name, tokens_of(tokens, tokens), 60, session_id=name)
        lone.step()
    assert [request.request_id for request in lone.scheduler.running] == ["long", "short", "last"]
    assert run_until_preemption(lone) == [victim]
    run_until_idle(lone)


@pytest.mark.parametrize("policy", [*STEERED, "lru"])
def test_a_decode_gets_its_token_beside_a_long_prefill(tiny_model_path: str, policy: str) -> None:
    lone = make_lone(tiny_model_path, policy)
    do_turn_in_no_time(lone, "before", tokens_of(9, 4), session_id="old")
    lone.scheduler.clock.now_s += 1.0
    lone.add("decodes", tokens_of(1, BLOCK_SIZE), 60, session_id="new")
    lone.step()
    # It takes five steps, has soon more tokens computed than the other, and is of an older job.
    lone.add("prefill", tokens_of(2, 450), 5, session_id="old")
    for _ in range(8):
        assert lone.step().scheduled["decodes"][0] == 1


def test_a_request_with_nobody_behind_it_is_preempted_itself(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "agentcache", blocks=1 + 7 + 4)
    for name, tokens in (("first", 112), ("last", 60)):
        lone.add(name, tokens_of(tokens, tokens), 60, session_id=name)
        lone.step()
    # The last request's fourth block is full before the first one's eighth is needed.
    assert run_until_preemption(lone) == ["last"]
    run_until_idle(lone)
