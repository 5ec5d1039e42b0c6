"""Describes what an agent does: a job is turns, a turn is one reply of the model and the tool calls it asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# One message of an OpenAI chat, as the API takes and gives it.
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it. `arguments` is JSON text; `id` is empty until a server has given one."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call: the text for the model, how long it took, and the error if it failed."""

    content: str
    duration_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """A request that was recorded without its text: its prompt as blocks of unknown but comparable content.

    Two blocks of a run are equal exactly if their ids are. Every block has `block_tokens` tokens, but that the prompt
    ends after `tokens` of them, within the last block. The reply had `reply_tokens`. `came_s`: when it came, in seconds
    after the first; 0 where that was not recorded.
    """

    blocks: tuple[int, ...]
    block_tokens: int
    tokens: int
    reply_tokens: int
    came_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply, the results of its calls in the order of the calls, and what led to the next request.

    That is sent `pause_s` seconds after the last result (or the reply, if there were no calls), with the messages
    `said` behind the results. `context` is what this turn's request was sent with, where no text was recorded.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    pause_s: float = 0.0
    said: tuple[Message, ...] = ()
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """When a sub-agent begins: `delay_s` after turn `turn` of its parent, the agent `parent`, has ended.

    If it `is_awaited`, what comes behind that turn begins with the sub-agent's last reply.
    """

    parent: str | None
    turn: int
    delay_s: float
    is_awaited: bool


@dataclass(frozen=True, slots=True)
class Job:
    """One task of an agent, from the first request to the last reply.

    `turns` is the recording that a replay follows. Either all turns have a context, and `messages` is empty, or none
    has. `agents` are recorded sub-agents, in the order in which they began: jobs with the same id, each with a
    `thread`, the agent's name, and a `start`. `tenant`, if there is any, is whose job it is: the cache salt of its
    requests.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    turns: tuple[Turn, ...] = ()
    arrival_s: float = 0.0
    thread: str | None = None
    start: Start | None = None
    agents: tuple[Job, ...] = ()
    tenant: str | None = None

    @property
    def family(self) -> tuple[Job, ...]:
        """Return the job and those of its sub-agents."""
        return self, *self.agents

    @property
    def name(self) -> str:
        """Return what tells it from others, its sub-agents too."""
        return self.id if self.thread is None else f"{self.id}/{self.thread}"
