"""What the simulator has to know of an engine under load: how long its steps take, and the way to it and back.

python benchmarks/served_steps.py steps.jsonl --run runs/served [--model llama-3.1-8b] [--gpu h200]

`steps.jsonl` is of logged_scheduler.py, `--run` is the folder of the replay that it served, from the same host. Steps
are compared with the model of the GPU in windows of a quarter of a second: with async scheduling the end of one step is
seen a little into the next.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentcache.policy.presets import find_step_cost
from agentcache.policy.step_cost import Row, StepCost
from agentcache.report.events import read_events
from agentcache.report.policy_run import group_by_policy

WINDOW_S = 0.25
# A request that comes during a longer step waits for its end, which is no delay of the front end.
SHORT_STEP_S = 0.012
# The least that a request takes to the engine: the two clocks are compared by it.
FASTEST_REQUEST_S = 0.004


class Window(NamedTuple):
    """Steps one behind the other. `prefill_tokens` of all of them."""

    seconds: float
    predicted_s: float
    prefill_tokens: int


@dataclass
class Log:
    """The lines by kind; `ended` by step, `done` by request."""

    steps: list[list[Any]] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    done: dict[str, float] = field(default_factory=dict)
    requests: list[list[Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Log:
        log = cls()
        for kind, *rest in map(json.loads, path.read_text().splitlines()):
            if kind == "step":
                log.steps.append(rest)
            elif kind == "request":
                log.requests.append(rest)
            else:
                number, ended_s, finished = rest
                log.ended[number] = ended_s
                log.done |= dict.fromkeys(finished, ended_s)
        return log

    def windows(self, gpu: StepCost) -> Iterator[Window]:
        """Only of steps that were scheduled before the one in front ended: what is between them is the engine's."""
        seconds, predicted_s, tokens = 0.0, 0.0, 0
        for number, scheduled_s, (decodes, keys), prefills in self.steps:
            before_s, ended_s = self.ended.get(number - 1, 0.0), self.ended.get(number)
            if ended_s is None or scheduled_s > before_s:
                seconds, predicted_s, tokens = 0.0, 0.0, 0
                continue
            # A decode's time is linear in its keys, so they may be shared out evenly.
            rows = [Row(1, keys // max(decodes, 1))] * decodes + [Row(*prefill) for prefill in prefills]
            seconds, predicted_s = seconds + ended_s - before_s, predicted_s + gpu.step_s(rows)
            tokens += sum(query for query, _ in prefills)
            if seconds > WINDOW_S:
                yield Window(seconds, predicted_s, tokens)
                seconds, predicted_s, tokens = 0.0, 0.0, 0


def show_steps(windows: list[Window]) -> str:
    if not windows:
        return "no windows: the engine schedules a step when the one in front has ended, or the log is too short"
    shares = np.array([window.predicted_s / window.seconds - 1 for window in windows])
    whole = sum(window.predicted_s for window in windows) / sum(window.seconds for window in windows) - 1
    rows = [f"{len(windows)} windows: predicted {whole:+.1%} in all, half within {np.median(np.abs(shares)):.1%}"]
    tokens = np.array([window.prefill_tokens / window.seconds for window in windows])
    for low, high in ((0, 1), (1, 5_000), (5_000, 15_000), (15_000, np.inf)):
        chosen = shares[(tokens >= low) & (tokens < high)]
        if len(chosen):
            rows.append(f"  {low:,} to {high:,} prefill tokens/s: {len(chosen)} windows, {chosen.mean():+.1%}")
    return "\n".join(rows)


def show_front_end(log: Log, folder: Path) -> str:
    """Fit delays. Turns are paired by session and order; the clocks by the request that was fastest."""
    (run,) = group_by_policy(read_events(folder)).values()
    sent = {(request.job, request.turn): request for request in run.requests}
    turns: Counter[str] = Counter()
    ends = sorted(log.ended.values())
    rows = []
    for added_s, request_id, prompt_tokens, session, running in log.requests:
        request = sent.get((session, turns[session]))
        turns[session] += 1
        if request is None or request_id not in log.done:
            continue
        index = bisect(ends, added_s)
        step_s = ends[index - 1] - ends[index - 2] if index > 1 else 0.0
        back_s = request.finished_s - log.done[request_id]
        rows.append((added_s - request.sent_s, back_s, prompt_tokens, running, step_s))
    there_s, back_s, tokens, running, step_s = np.array(rows).T
    offset_s = there_s.min() - FASTEST_REQUEST_S
    quiet = step_s < SHORT_STEP_S
    base, token, beside = _fit(there_s[quiet] - offset_s, tokens[quiet], running[quiet])
    reply, reply_beside = _fit(back_s + offset_s, running)
    there = f"{1e3 * base:.1f} ms + {1e6 * token:.2f} us a token + {1e3 * beside:.2f} ms a request beside"
    back = f"{1e3 * reply:.1f} ms + {1e3 * reply_beside:.2f} ms a request beside"
    return f"{len(rows)} requests, {quiet.sum()} in short steps\n  to the engine: {there}\n  to the client: {back}"


def _fit(seconds: np.ndarray[Any, Any], *columns: np.ndarray[Any, Any]) -> Any:
    return np.linalg.lstsq(np.stack([np.ones(len(seconds)), *columns], axis=1), seconds, rcond=None)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--gpu", default="h200")
    options = parser.parse_args()
    log = Log.read(options.steps)
    sys.stdout.write(show_steps(list(log.windows(find_step_cost(options.model, options.gpu)))) + "\n")
    sys.stdout.write(show_front_end(log, options.run) + "\n")


if __name__ == "__main__":
    main()
