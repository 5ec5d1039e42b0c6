"""What became of the recording while it was turned into jobs, as counts and as the notes of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workloads.agent_traces.timeline import Wait

_SHARING_NOTE = (
    "Block ids are recorded per session. Sharing between sessions is ours: the blocks of the tool definitions, the "
    "first of every prompt, are one where these are equally long, and those of the system prompt behind them where "
    "that is equally long too"
)
_UNKNOWN_STOP_NOTE = "replies without a recorded stop count as tool calls, as the waits after them are as long as those"


@dataclass(slots=True)
class Tally:
    """Counts of requests, but for those named otherwise."""

    sessions: int = 0
    requests: int = 0
    head_tokens: int = 0
    sub_agents: int = 0
    of_sub_agents: int = 0
    tool_waits: int = 0
    pauses: int = 0
    estimated_waits: int = 0
    capped_waits: int = 0
    cut_sessions: int = 0
    cut_off: int = 0
    passed_over: int = 0

    def count_wait(self, wait: Wait, max_gap_s: float) -> None:
        """Count a wait, which is cut to `max_gap_s` seconds."""
        self.tool_waits += wait.by_tool
        self.pauses += not wait.by_tool
        self.estimated_waits += wait.estimated
        self.capped_waits += wait.seconds > max_gap_s

    def describe(self, *, scale: float, max_context: int | None, max_gap_s: float) -> Iterator[str]:
        """Describe the counts in sentences; the arguments are what the jobs were made with."""
        yield (
            f"{self.sessions} agent sessions, {self.requests} requests: sizes, the equality of blocks and times are "
            "recorded, the text is not."
        )
        yield f"{_SHARING_NOTE} ({self.head_tokens / max(1, self.sessions):.0f} tokens a session, before scaling)."
        yield (
            f"Waits are the recorded ones, {self.tool_waits} for a tool and {self.pauses} for a human; "
            f"{_UNKNOWN_STOP_NOTE}; {self.capped_waits} waits were longer than {max_gap_s:g} s and are cut to it."
        )
        if self.estimated_waits:
            yield (
                f"{self.estimated_waits} waits follow a reply whose time was not recorded: that is estimated from its "
                "tokens and the session's other replies."
            )
        if self.sub_agents:
            yield (
                f"{self.sub_agents} sub-agents with {self.of_sub_agents} requests run inside their session, in the "
                "recorded order; those that ran in parallel take turns."
            )
        if scale != 1:
            yield f"All sizes are multiplied by about {scale:g}, such that a block has a whole number of tokens."
        if max_context is not None:
            yield (
                f"{self.cut_sessions} sessions end early, before the first request of more than {max_context} tokens "
                f"({self.cut_off} requests left out); {self.passed_over} sessions begin with one and are left out."
            )
