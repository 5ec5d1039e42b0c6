"""Jobs that push out of an engine's caches what others have left there."""

from __future__ import annotations

from live_engine import BLOCK, LiveEngine, make_prompt

from tool_runtime.agent.job import ToolCall

SEARCH = ToolCall("search", "{}")


def settle(engine: LiveEngine) -> None:
    """Go on as an engine does in its own process, until nothing is left to be copied."""
    while engine.scheduler.has_requests():
        engine.step()


def push_out(engine: LiveEngine) -> None:
    """Other jobs use the cache."""
    for seed in range(2, 5):
        settle(engine)
        engine.ask(make_prompt(seed, tokens=30 * BLOCK), 4, session=f"other-{seed}", calls=[SEARCH])
