"""A seeded generator of runs for the tests of the report: jobs in a queue of few slots, turns, tools, failures."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentcache.report.events import (
    Event,
    EventWriter,
    JobEvent,
    PolicyEvent,
    RequestEvent,
    RunRecord,
    ToolCallEvent,
    write_run_record,
)

BLOCK_SIZE = 16


def make_record(**changes: object) -> RunRecord:
    record = RunRecord(
        command="agentcache replay --workload bfcl --policy lru --policy agentcache --out runs/first",
        started_at="2026-11-21T10:30:00+00:00",
        workload="bfcl multi-turn",
        model="embedded-tiny-llama",
        device="CPU backend",
        seed=7,
        jobs=24,
        cache_tokens=65_536,
        settings={"concurrency": 8, "max_model_len": 32_768, "tool_time_scale": 1.0},
        versions={"agentcache": "0.1.0", "vllm": "0.32.0", "torch": "2.13.0"},
        notes=("Tool durations are the recorded ones.",),
    )
    return record.model_copy(update=changes)


def make_events(
    policy: str, jobs: int, *, seed: int = 0, hit: float = 0.7, failing: float = 0.0, slots: int = 8, split: bool = True
) -> list[Event]:
    """One policy's events in the order of their ends. `hit` is the share of the history that stays cached."""
    rng = random.Random(f"{policy} {seed}")
    free = [0.0] * slots
    events: list[RequestEvent | ToolCallEvent | JobEvent] = []
    for number in range(jobs):
        started = heapq.heappop(free)
        made = _make_job(policy, f"multi_turn_base_{number}", started, rng, hit=hit, failing=failing, split=split)
        heapq.heappush(free, made[-1].finished_s)
        events += made
    events.sort(key=lambda event: event.finished_s)
    end = PolicyEvent(
        policy=policy,
        block_size=BLOCK_SIZE,
        cache_tokens=65_536,
        preemptions=3,
        engine_startup_s=21.4,
        model_runner="V1",
    )
    return [*events, end]


def _make_job(
    policy: str, job: str, now: float, rng: random.Random, *, hit: float, failing: float, split: bool
) -> list[RequestEvent | ToolCallEvent | JobEvent]:
    events: list[RequestEvent | ToolCallEvent | JobEvent] = []
    started, prompt, reusable, turns = now, rng.randrange(800, 3000), 0, rng.randrange(3, 9)
    fails = rng.random() < failing
    for turn in range(turns):
        cached = int(reusable * min(1.0, rng.uniform(max(0.0, hit - 0.3), hit + 0.5))) // BLOCK_SIZE * BLOCK_SIZE
        if turn == turns - 1 and fails:
            cause = f"turn {turn}: the engine answered 500"
            events.append(make_request(policy, job, turn, now, 2.0, error=cause))
            now = events[-1].finished_s
            return [*events, make_job(policy, job, started, now, turns=turn, status="failed", error=cause)]
        queue, prefill, output = rng.expovariate(2.0), 0.02 + (prompt - cached) * 2e-4, rng.randrange(1, 120)
        wait, reply = queue + prefill, 0.02 * (output - 1)
        fields: dict[str, float] = {
            "prompt_tokens": prompt,
            "output_tokens": output,
            "cached_tokens": cached,
            "reusable_tokens": reusable,
        }
        if split:
            fields |= {"queue_s": queue, "prefill_s": prefill, "decode_s": reply}
        events.append(make_request(policy, job, turn, now, wait, reply_s=reply, **fields))
        now = events[-1].finished_s
        reusable = (prompt + output) // BLOCK_SIZE * BLOCK_SIZE
        prompt += output + rng.randrange(50, 1500)
        if turn < turns - 1:
            events.append(make_tool_call(policy, job, turn, now, rng.lognormvariate(0.0, 0.8)))
            now = events[-1].finished_s
    return [*events, make_job(policy, job, started, now, turns=turns)]


def make_request(
    policy: str, job: str, turn: int, sent_s: float, wait_s: float, *, reply_s: float = 0.0, **changes: Any
) -> RequestEvent:
    """A request that has its first token, or fails, `wait_s` after it was sent, and its last token `reply_s` later."""
    first_token_s = None if changes.get("error") else sent_s + wait_s
    finished_s = sent_s + wait_s + reply_s
    fixed = {"policy": policy, "job": job, "turn": turn, "sent_s": sent_s, "finished_s": finished_s, "cached_tokens": 0}
    return RequestEvent.model_validate({**fixed, "first_token_s": first_token_s, **changes})


def make_tool_call(policy: str, job: str, turn: int, started_s: float, duration_s: float) -> ToolCallEvent:
    finished_s = started_s + duration_s
    return ToolCallEvent(policy=policy, job=job, turn=turn, tool="search", started_s=started_s, finished_s=finished_s)


def make_job(policy: str, job: str, started_s: float, finished_s: float, **changes: Any) -> JobEvent:
    fixed = {"policy": policy, "job": job, "started_s": started_s, "finished_s": finished_s}
    return JobEvent.model_validate({**fixed, "turns": 1, "status": "finished", **changes})


def write_run(folder: Path, events: Iterable[Event], **changes: object) -> Path:
    """A folder as a replay leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_run_record(folder, make_record(**changes))
    with EventWriter(folder) as writer:
        for event in events:
            writer.write(event)
    return folder
