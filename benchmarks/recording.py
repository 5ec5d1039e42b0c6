"""What recording costs the engine: seconds of its thread and of the writer's, by request, beside those of its steps.

    python benchmarks/recording.py --prompt 32768 --reply 300 --requests 2000

A request is in the engine for as many steps as its reply has tokens, and in each of them other requests are, too. So
the share is given for the worst case, a request alone, and for a batch.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.v1.request import RequestStatus

from agentcache.engine.record.line_file import LineFile
from agentcache.engine.record.line_writer import LineWriter
from agentcache.engine.record.recorder import RequestRecorder
from agentcache.engine.record.salted_line import LineMaker
from agentcache.policy.presets import Row, find_step_cost
from workloads.recording.line import VERSION, Header

_HASH_TOKENS, _BLOCK_TOKENS = 16, 512


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=32_768)
    parser.add_argument("--reply", type=int, default=300)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    engine_s, writer_s = _measure(options)
    step_s = find_step_cost("llama-3.1-8b", "h200").step_s([Row(1, options.prompt)] * options.batch)
    by_step_s = (engine_s + writer_s) * options.batch / options.reply
    sys.stdout.write(
        f"a request of {options.prompt:,} + {options.reply:,} tokens: {engine_s * 1e6:.1f} us of the engine's thread, "
        f"{writer_s * 1e6:.1f} us of the writer's\n"
        f"a step with {options.batch} such requests (H200, modelled): {step_s * 1e3:.1f} ms, of which recording takes "
        f"{by_step_s * 1e6:.1f} us, {by_step_s / step_s:.3%}, if both threads share one core\n"
    )


def _measure(options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds by request of the engine's thread and of the writer's."""
    requests = [_make_request(number, options) for number in range(options.requests)]
    header = Header(version=VERSION, id="benchmark", block_tokens=_BLOCK_TOKENS, model="", policy="", started_at="")
    with tempfile.TemporaryDirectory() as folder:
        lines = LineMaker(key=bytes(32), block_tokens=_BLOCK_TOKENS, tool_names=False, started_s=0.0)
        writer = LineWriter(LineFile(Path(folder) / "r.jsonl", max_bytes=10**9, files=1), lines, header)
        recorder = RequestRecorder(
            writer, hashes_per_block=_BLOCK_TOKENS // _HASH_TOKENS, tool_reader=None, clock=time.monotonic
        )
        # By thread: the writer works meanwhile.
        own, both = time.thread_time(), time.process_time()
        for request in requests:
            recorder.arrived(request, None)
            recorder.admitted(request)
            recorder.got_tokens(request.request_id)
            recorder.ended(request)
        engine_s = time.thread_time() - own
        recorder.close()
        writer_s = time.process_time() - both - (time.thread_time() - own)
    return engine_s / len(requests), writer_s / len(requests)


def _make_request(number: int, options: argparse.Namespace) -> Any:
    hashes = (options.prompt + options.reply) // _HASH_TOKENS
    return SimpleNamespace(
        request_id=f"request-{number}",
        session_id=f"session-{number % 100}",
        cache_salt=None,
        prefill_stats=SimpleNamespace(num_cached_tokens=0),
        num_prompt_tokens=options.prompt,
        num_output_tokens=options.reply,
        block_hashes=[hashlib.sha256(b"%d" % each).digest() for each in range(hashes)],
        sampling_params=None,
        status=RequestStatus.FINISHED_STOPPED,
    )


if __name__ == "__main__":
    main()
