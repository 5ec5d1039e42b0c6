"""Runs one turn of a job through a scheduler without a worker, and finds the modules that it passes.

.venv/bin/python benchmarks/one_turn.py [--cpu-cache]

stops in Python's debugger before the turn (docs/structure.md#follow-a-turn-in-a-debugger).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from vllm import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHash, get_request_block_hasher
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.marks import write_forced_calls
from agentcache.models.catalog import resolve_model
from agentcache.sim.clock import VirtualClock
from agentcache.sim.delays import make_link
from agentcache.sim.engine_shape import EngineShape, build_scheduler
from agentcache.sim.known_hashes import choose_hash
from tool_runtime.agent.job import ToolCall

BLOCK_TOKENS = 16
CACHE_TOKENS = 1024
STEP_S = 0.02
REPLY = list(range(5000, 5040))
DICTATED = {REPLY_ARGUMENT: REPLY, CALLS_ARGUMENT: write_forced_calls((ToolCall("look", "{}"),))}
# Evicted before the turn that is traced.
GAP = slice(8, 16)


class LoneEngine:
    """A scheduler under the default policy, whose steps are done as soon as they are scheduled."""

    def __init__(self, *, cpu_cache: bool) -> None:
        self.clock = VirtualClock()
        shape = EngineShape(
            model_path=resolve_model("shape:llama-3.1-8b").path,
            cache_tokens=CACHE_TOKENS,
            block_size=BLOCK_TOKENS,
            max_num_batched_tokens=256,
            max_num_seqs=16,
            host_tokens=4 * CACHE_TOKENS if cpu_cache else 0,
            knobs={"gpu": "h20", "tuning": {"row_s": 0.0}},
        )
        self.scheduler = build_scheduler(shape, "agentcache", self.clock)
        self._link = make_link(self.scheduler) if cpu_cache else None
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, choose_hash(self.scheduler.vllm_config))

    def ask(self, session: str, turn: int, prompt: Sequence[int]) -> Request:
        """Make the request of a turn."""
        params = SamplingParams(max_tokens=len(REPLY), ignore_eos=True, extra_args=DICTATED)
        name = f"{session}/{turn}"
        return Request(name, list(prompt), params, None, block_hasher=self._hasher, session_id=session)

    def run(self, request: Request) -> None:
        """Run a turn to its end."""
        self.scheduler.add_request(request)
        while request.request_id in self.scheduler.requests:
            self._step()

    def evict(self, hashes: Sequence[BlockHash]) -> None:
        """Evict cached blocks."""
        pool = self.scheduler.kv_cache_manager.block_pool
        found = [pool.get_cached_block(each, [0]) for each in hashes]
        pool.evict_blocks({blocks[0].block_id for blocks in found if blocks})

    def _step(self) -> None:
        scheduler, began_s = self.scheduler, self.clock.now()
        output = scheduler.schedule()
        self.clock.advance_to(began_s + STEP_S)
        copied = None
        if self._link is not None:
            self._link.begin(output.kv_connector_metadata, began_s, self.clock.now())
            copied = self._link.end(self.clock.now())
        ids = list(output.num_scheduled_tokens)
        requests = [scheduler.requests[each] for each in ids]
        sampled = [[] if each.is_prefill_chunk else [REPLY[each.num_output_tokens % len(REPLY)]] for each in requests]
        rows = {each: row for row, each in enumerate(ids)}
        scheduler.update_from_output(output, ModelRunnerOutput(ids, rows, sampled, kv_connector_output=copied))


def prepare_turn(*, cpu_cache: bool) -> tuple[LoneEngine, Request]:
    """Make an engine and a job's second turn, some of whose context has been evicted."""
    engine = LoneEngine(cpu_cache=cpu_cache)
    first = engine.ask("one", 0, range(400))
    engine.run(first)
    # The cache is full after these, so the turn evicts others' blocks.
    for other in range(3):
        engine.run(engine.ask(f"other {other}", 0, range(1000 * (other + 1), 1000 * (other + 1) + 150)))
    engine.evict(first.block_hashes[GAP])
    return engine, engine.ask("one", 1, [*range(400), *REPLY, *range(6000, 6100)])


def trace_turn(root: Path, *, cpu_cache: bool) -> set[Path]:
    """Find the modules that run while that turn does."""
    engine, turn = prepare_turn(cpu_cache=cpu_cache)
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        engine.run(turn)
    finally:
        sys.setprofile(None)
    folders = [root / "agentcache", root / "tool_runtime"]
    passed = {Path(each) for each in files}
    return {each for each in passed if any(folder in each.parents for folder in folders) and "sim" not in each.parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu-cache", action="store_true", help="give the engine a CPU cache")
    engine, turn = prepare_turn(cpu_cache=parser.parse_args().cpu_cache)
    breakpoint()
    engine.run(turn)


if __name__ == "__main__":
    main()
