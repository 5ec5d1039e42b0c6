from __future__ import annotations

from pathlib import Path

import pytest
from made_simulation import ConstantGpu, make_turn, record, run_jobs

from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.sim.delays import MEASURED_FRONT_END, FrontEnd


def test_delays_grow_with_the_prompt_and_the_requests_beside() -> None:
    front_end = FrontEnd(
        request_s=0.5, prompt_token_s=0.001, request_beside_s=0.25, reply_s=0.125, reply_beside_s=0.0625
    )
    assert front_end.request_delay_s(prompt_tokens=0, beside=0) == 0.5
    assert front_end.request_delay_s(prompt_tokens=1000, beside=2) == 2.0
    assert front_end.reply_delay_s(beside=0) == 0.125
    assert front_end.reply_delay_s(beside=2) == 0.25


def test_the_measured_front_end_takes_tens_of_milliseconds() -> None:
    quiet = MEASURED_FRONT_END.request_delay_s(1_000, 0) + MEASURED_FRONT_END.reply_delay_s(0)
    busy = MEASURED_FRONT_END.request_delay_s(40_000, 30) + MEASURED_FRONT_END.reply_delay_s(30)
    assert 0.02 < quiet < 0.05
    assert 0.2 < busy < 0.4


def test_clients_see_both_ways_and_the_engine_neither(tiny_model_path: str, tmp_path: Path) -> None:
    tokenizer = LocalTokenizer(tiny_model_path)
    job = record(tokenizer, "one", 1.0, make_turn("I look.", 2.0), make_turn("Here."))
    asks, answers = map(len, job.replies)
    run = run_jobs(tiny_model_path, [job], tmp_path, ConstantGpu(), front_end=FrontEnd(request_s=0.25, reply_s=0.5))
    first, second = run.requests
    assert (first.sent_s, first.first_token_s, first.finished_s) == (1.0, 1.25 + 1 + 0.5, 1.25 + asks + 0.5)
    # The tool starts when the client has the call.
    sent_s = 1.25 + asks + 0.5 + 2.0
    assert (second.sent_s, second.finished_s) == (sent_s, sent_s + 0.25 + answers + 0.5)
    assert (first.queue_s, first.prefill_s, first.decode_s) == (0.0, 1.0, asks - 1)


def test_requests_beside_make_both_ways_longer(tiny_model_path: str, tmp_path: Path) -> None:
    tokenizer = LocalTokenizer(tiny_model_path)
    jobs = [
        record(tokenizer, "long", 0.0, make_turn("It is a long way to go. " * 10)),
        record(tokenizer, "late", 2.0, make_turn("Here.")),
    ]
    delays = FrontEnd(request_beside_s=0.5, reply_beside_s=0.25)
    run = run_jobs(tiny_model_path, jobs, tmp_path, ConstantGpu(), front_end=delays)
    late = next(request for request in run.requests if request.job == "late")
    # Half a second to the engine, another to the next step, a quarter back.
    assert late.first_token_s == pytest.approx(2.0 + 1.0 + 1.0 + 0.25)
