"""What the engine core keeps while it serves long prompts for minutes: requests alive, memory, answers.

python benchmarks/soak.py [--minutes N] [--jobs N] [--policy NAME] [--kv-tokens N] [--every S] [--served [--stock]]

vLLM's scheduler with ours, its block pool and evictor in this process, as in an engine core, under default limits and
without worker or GPU: tokens are made up and time is modelled (Llama-3.1-8B on an H200), so that minutes serve
thousands of turns. What workers and API servers keep is not seen. Each job has up to eight turns that call tools; some
requests are aborted, some tools never return. With --served a server of the tiny model on the CPU is asked instead,
with names, headers, tools and prompts at their largest: memory of API server and engine core; with --stock it is stock
vLLM's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from soak_served import watch_served
from vllm.v1.request import Request

from agentcache.models.catalog import resolve_model
from agentcache.policy.presets import find_step_cost
from agentcache.sim.clock import VirtualClock
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.engine_shape import EngineShape
from tool_runtime.agent.job import ToolCall

FIRST_PROMPT = (8_000, 30_000)
RESULT_TOKENS = (50, 2_000)
REPLY_TOKENS = 40
MAX_TURNS = 8
TOOLS = ("search", "fetch", "bash")
VOCABULARY = 100_000
ABORTED = 0.05
NEVER_BACK = 0.1


@dataclass
class Job:
    session: str
    prompt: list[int]
    turn: int = 0

    @property
    def request_id(self) -> str:
        return f"{self.session}/{self.turn}"


class Soak:
    """So many jobs at any time; who leaves is replaced."""

    def __init__(self, policy: str, jobs: int, kv_tokens: int) -> None:
        self.engine = make_engine(policy, kv_tokens)
        self.answers = self.aborted = 0
        self._chance = random.Random(0)
        self._numbers = itertools.count()
        self._asking: dict[str, Job] = {}
        # When a job asks next, and a number that tells equal times apart.
        self._away: list[tuple[float, int, Job]] = []
        for _ in range(jobs):
            self._go_away(self._begin_job(), 10.0)

    @property
    def under_way(self) -> int:
        return len(self._asking)

    def step(self) -> None:
        engine, clock = self.engine, self.engine.clock
        if engine.idle:
            clock.advance_to(max(clock.now(), self._away[0][0]))
        while self._away and self._away[0][0] <= clock.now():
            self._ask(heapq.heappop(self._away)[2])
        clock.advance_to(engine.begin_step())
        for times in engine.end_step().finished:
            self.answers += 1
            self._continue(self._asking.pop(times.request_id))

    def _ask(self, job: Job) -> None:
        self._asking[job.request_id] = job
        is_last = job.turn == MAX_TURNS - 1
        calls = () if is_last else (ToolCall(self._chance.choice(TOOLS), "{}"),)
        self.engine.add(job.request_id, list(job.prompt), reply_of(job), session_id=job.session, calls=calls)
        if self._chance.random() < ABORTED:
            self.engine.abort(job.request_id)
            self.aborted += 1
            del self._asking[job.request_id]
            self._go_away(self._begin_job(), 1.0)

    def _continue(self, job: Job) -> None:
        if job.turn == MAX_TURNS - 1 or self._chance.random() < NEVER_BACK:
            self._go_away(self._begin_job(), 1.0)
            return
        job.prompt = [*job.prompt, *reply_of(job), *self._write(self._chance.randint(*RESULT_TOKENS))]
        job.turn += 1
        self._go_away(job, 2.0)

    def _begin_job(self) -> Job:
        return Job(f"soak {next(self._numbers)}", self._write(self._chance.randint(*FIRST_PROMPT)))

    def _go_away(self, job: Job, mean_s: float) -> None:
        back_s = self.engine.clock.now() + self._chance.expovariate(1 / mean_s)
        heapq.heappush(self._away, (back_s, next(self._numbers), job))

    def _write(self, tokens: int) -> list[int]:
        return self._chance.choices(range(VOCABULARY), k=tokens)


def make_engine(policy: str, kv_tokens: int) -> SimulatedEngine:
    shape = EngineShape(
        model_path=resolve_model("shape:llama-3.1-8b").path,
        cache_tokens=kv_tokens,
        block_size=16,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        knobs={"gpu": "h200"},
    )
    return SimulatedEngine(shape, policy, find_step_cost("llama-3.1-8b", "h200"), VirtualClock())


def reply_of(job: Job) -> list[int]:
    return [job.turn + 1] * REPLY_TOKENS


def count_alive() -> int:
    """All requests in this process, whoever refers to them."""
    gc.collect()
    return sum(type(each) is Request for each in gc.get_objects())


def watch(soak: Soak, minutes: float, every_s: float) -> Iterator[tuple[object, ...]]:
    """A line every so many seconds of real time, the first before anything is served."""
    process, started_s = psutil.Process(), time.monotonic()
    for number in itertools.count():
        while (elapsed_s := time.monotonic() - started_s) < min(number * every_s, 60 * minutes):
            soak.step()
        rss_mb = process.memory_info().rss / 2**20
        yield (
            round(elapsed_s),
            round(soak.engine.clock.now()),
            soak.answers,
            soak.aborted,
            soak.under_way,
            count_alive(),
            round(rss_mb),
        )
        if elapsed_s >= 60 * minutes:
            return


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="of real time")
    parser.add_argument("--jobs", type=int, default=24, metavar="N", help="under way at any time")
    parser.add_argument("--policy", default="agentcache", metavar="NAME")
    parser.add_argument("--kv-tokens", type=int, default=500_000, metavar="N")
    parser.add_argument("--served", action="store_true", help="ask a server, with names and tools at their largest")
    parser.add_argument("--stock", action="store_true", help="with --served: stock vLLM's server")
    parser.add_argument("--every", type=float, default=15.0, metavar="S", help="seconds between lines")
    return parser.parse_args()


async def show_served(minutes: float, every_s: float, *, is_stock: bool) -> None:
    names = ("seconds", "answers", "refused", "ended", "came back", "server (MB)", "core (MB)")
    print("".join(f"{name:>12}" for name in names), flush=True)  # noqa: T201
    async for line in watch_served(minutes, every_s, is_stock=is_stock):
        print("".join(f"{cell:>12}" for cell in line), flush=True)  # noqa: T201


def main() -> None:
    arguments = parse_arguments()
    if arguments.served:
        asyncio.run(show_served(arguments.minutes, arguments.every, is_stock=arguments.stock))
        return
    soak = Soak(arguments.policy, arguments.jobs, arguments.kv_tokens)
    names = ("seconds", "modelled", "answers", "aborted", "under way", "alive", "RSS (MB)")
    print("".join(f"{name:>11}" for name in names), flush=True)  # noqa: T201
    for line in watch(soak, arguments.minutes, arguments.every):
        print("".join(f"{cell:>11}" for cell in line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
