"""What recording costs an engine's steps: a scheduler that records beside one that does not, step by step.

    python benchmarks/recording.py --policy vllm --requests 32 --prompt 8192 --new 512 --reply 100 --steps 3000

As many requests run at any time; each ends with a tool call, which is read, and another one comes, whose prompt is
cached but for its last tokens. A step is what the engine's thread does of it: requests that come, `schedule()`, and the
tokens that come back. Between the last two the thread sleeps for as long as an H200 would take for the step, so caches
are as cold, and the writer's thread runs when, as in an engine. The two schedulers take turns, so that a disturbance
meets both. The writer's thread is measured by itself. Seconds are of CPU time, but for the GPU's, which are modelled.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from compare import find_interval
from scheduler_overhead import BLOCK_TOKENS, Bench, make_prompts
from vllm import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from agentcache.engine.constants import TOOLS_DECLARED_ARGUMENT
from agentcache.policy.presets import find_step_cost
from agentcache.policy.step_cost import Row

_RUNTIME = {"tool_parser": "hermes"}
_TOOL = "look"
_CALL = f'<tool_call>\n{{"name": "{_TOOL}", "arguments": {{"at": "tea"}}}}\n</tool_call>'
_TEXT_TOKEN = 7
# Of the steps, so that their spread shows.
_PARTS = 20


class Engine(Bench):
    """Keeps as many requests running as there are seats. Their replies end with a tool call."""

    def __init__(self, options: argparse.Namespace, knobs: dict[str, Any]) -> None:
        tokens = options.prompt + options.reply
        blocks = (options.requests + 2) * (tokens // BLOCK_TOKENS + 1)
        knobs = {"runtime": _RUNTIME, **knobs}
        super().__init__(options.policy, blocks, tokens, seats=options.requests, knobs=knobs)
        tokenizer = cached_tokenizer_from_config(self.scheduler.vllm_config.model_config)
        self._call = tokenizer.encode(_CALL, add_special_tokens=False)
        self._end = tokenizer.eos_token_id
        self._seats, self._new, self._reply = options.requests, options.new, options.reply
        (self._prompt,) = make_prompts(1, options.prompt)
        self._step_s = find_step_cost("llama-3.1-8b", "h200").step_s
        self.gpu_s: list[float] = []
        self._lengths: dict[str, int] = {}
        # The first ones end one after the other, as those that come later do.
        for seat in range(self._seats):
            self.scheduler.add_request(self.make(self._reply * (seat + 1) // self._seats))

    def make(self, reply_tokens: int) -> Request:
        number = next(self._numbers)
        params = SamplingParams(max_tokens=2 * reply_tokens, extra_args={TOOLS_DECLARED_ARGUMENT: [_TOOL]})
        params.update_from_generation_config({}, self._end)
        prompt = list(self._prompt)
        prompt[-self._new] = number
        request = Request(f"request {number}", prompt, params, None, block_hasher=self._hasher, session_id=f"{number}")
        self._lengths[request.request_id] = reply_tokens
        return request

    def turn(self) -> float:
        """Seconds of the thread for a step, in which as many requests come as have ended."""
        ended = self._seats - len(self.scheduler.requests)
        coming = [self.make(self._reply) for _ in range(ended)]
        start_s = time.thread_time()
        for request in coming:
            self.scheduler.add_request(request)
        output = self.scheduler.schedule()
        scheduled_s = time.thread_time() - start_s
        self.gpu_s.append(self.gpu_step(output))
        # The writer's thread has Python's lock then, as where the engine waits for its GPU.
        time.sleep(self.gpu_s[-1])
        sampled = self._sample(output)
        start_s = time.thread_time()
        self.scheduler.update_from_output(output, sampled)
        return scheduled_s + time.thread_time() - start_s

    def gpu_step(self, output: SchedulerOutput) -> float:
        """Seconds of the GPU."""
        computed = {name: self.scheduler.requests[name].num_computed_tokens for name in output.num_scheduled_tokens}
        return self._step_s([Row(query, computed[name] - query) for name, query in output.num_scheduled_tokens.items()])

    def _sample(self, output: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in ids]
        tokens = [[] if request.is_prefill_chunk else [self._next_token(request)] for request in requests]
        return ModelRunnerOutput(ids, {name: row for row, name in enumerate(ids)}, tokens)

    def _next_token(self, request: Request) -> int:
        left = self._lengths[request.request_id] - request.num_output_tokens
        tail = [*self._call, self._end]
        return tail[-left] if left <= len(tail) else _TEXT_TOKEN


def main() -> None:
    """Measure and print."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        record = {"record": {"file": str(Path(folder) / "r.jsonl")}}
        engines = [Engine(options, knobs) for knobs in ({}, record)]
        (writer,) = (each for each in threading.enumerate() if each.name == "agentcache-record")
        assert writer.ident is not None
        writer_clock = time.pthread_getcpuclockid(writer.ident)
        gc.collect()
        gc.disable()
        # By then all requests run.
        measure(engines, options.reply)
        before_s = time.clock_gettime(writer_clock)
        without, recorded = measure(engines, options.steps)
        writer_s = (time.clock_gettime(writer_clock) - before_s) / options.steps
        gc.enable()
        for engine in engines:
            engine.scheduler.shutdown()
    report(options, without, recorded, writer_s, mean(engines[0].gpu_s[-options.steps :]))


def measure(engines: Sequence[Engine], steps: int) -> list[list[float]]:
    """Seconds of each engine's steps. Who is first takes turns, too."""
    times: list[list[float]] = [[] for _ in engines]
    for step in range(steps):
        for place in (0, 1) if step % 2 else (1, 0):
            times[place].append(engines[place].turn())
    return times


def report(
    options: argparse.Namespace, without: list[float], recorded: list[float], writer_s: float, gpu_s: float
) -> None:
    size = len(without) // _PARTS
    parts = [slice(start, start + size) for start in range(0, size * _PARTS, size)]
    more = [mean(recorded[part]) - mean(without[part]) for part in parts]
    low, high = find_interval(more)
    both_s = mean(more) + writer_s
    sys.stdout.write(
        f"{options.policy}, {options.requests} requests of {options.prompt:,} tokens, {options.new:,} of them not "
        f"cached, + {options.reply:,} tokens, {options.steps:,} steps, microseconds a step:\n"
        f"engine's thread, not recording  {mean(without) * 1e6:8.1f}\n"
        f"engine's thread, recording      {mean(recorded) * 1e6:8.1f}\n"
        f"difference                      {mean(more) * 1e6:8.1f}   95 % {low * 1e6:.1f} to {high * 1e6:.1f}, "
        f"{mean(more) / mean(without):.2%} of the thread's step\n"
        f"writer's thread                 {writer_s * 1e6:8.1f}\n"
        f"GPU (H200, modelled)            {gpu_s * 1e6:8.1f}   the difference is {mean(more) / gpu_s:.3%} of it, "
        f"with the writer's thread {both_s / gpu_s:.3%}\n"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="vllm")
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="that run at any time")
    parser.add_argument("--prompt", type=int, default=8_192, metavar="N", help="tokens")
    parser.add_argument("--new", type=int, default=512, metavar="N", help="tokens of the prompt that are not cached")
    parser.add_argument("--reply", type=int, default=100, metavar="N", help="tokens")
    parser.add_argument("--steps", type=int, default=3_000, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    main()
