"""Jobs of tau-bench and tau2-bench: an agent of an airline or a shop, its tools, and a simulated user.

A file is what the benchmarks write: of tau-bench a JSON list of runs, each with its chat in `traj`, of tau2-bench an
object with `simulations`. The files that come with tau-bench (github.com/sierra-research/tau-bench,
`historical_trajectories/`) hold four trials of each task. Runs that failed have no chat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from pydantic import RootModel

from agentcache.errors import InputError
from converters.chat import Call, ChatMessage, Function, ToolName, declare_tools, read_chat
from converters.left_out import ForeignRecord, LeftOut
from converters.pace import Pace, pace_jobs
from converters.recorded import draw_recordings
from tool_runtime.agent.job import Job
from tool_runtime.bounds import Count
from workloads.loaded import read_whole


class _Run(ForeignRecord):
    task_id: Count
    trial: Count
    traj: list[ChatMessage]


class _File(RootModel[list[_Run]]):
    pass


class _Call(ForeignRecord):
    name: ToolName
    arguments: dict[str, Any]


class _Message(ForeignRecord):
    """A message; `requestor` tells the tools of the simulated user, which the agent never sees, from its own."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_Call] | None = None
    requestor: Literal["user", "assistant"] = "assistant"


class _Simulation(ForeignRecord):
    task_id: str
    trial: Count | None = None
    messages: list[_Message] | None = None


class _Environment(ForeignRecord):
    policy: str


class _Info(ForeignRecord):
    environment_info: _Environment


class _Results(ForeignRecord):
    """What tau2-bench writes. The agent's system message is made of the policy."""

    info: _Info
    simulations: list[_Simulation]


def read_runs(path: Path, *, jobs: int | None, pace: Pace, left_out: LeftOut) -> list[Job]:
    """Read `jobs` runs, all for None, drawn by the seed, each a job with its text; one turn a reply of the agent.

    Runs that failed before a reply are left out, and counted in `left_out` with fields that are not read. Tools are
    declared by the names that the file's runs call, for their descriptions were not recorded. Tool times are drawn. The
    agent waits for the simulated user as a conversation does for its user: the pauses are drawn by the same law. Raises
    InputError that names the file, the run's index and the field.
    """
    drawn = draw_recordings(_read_runs(path, left_out), jobs, path, pace.seed)
    return pace_jobs(drawn, pace)


def _read_runs(path: Path, left_out: LeftOut) -> list[Job]:
    text = read_whole(path)
    if text.lstrip().startswith(b"{"):
        results = left_out.parse(_Results, text, str(path))
        chats = [*_list_chats(results)]
    else:
        chats = [
            (f"[{index}].traj", f"task-{run.task_id}-trial-{run.trial}", run.traj)
            for index, run in enumerate(left_out.parse(_File, text, str(path)).root)
        ]
    replied = [each for each in chats if any(message.role == "assistant" for message in each[2])]
    left_out.failed += len(chats) - len(replied)
    if chats and not replied:
        raise InputError(f"{path}: holds {len(chats)} runs, all of which failed")
    messages = (message for _, _, chat in replied for message in chat)
    tools = declare_tools(call.function.name for message in messages for call in message.tool_calls or ())
    place_of_id: dict[str, str] = {}
    read = []
    for place, job_id, chat in replied:
        if place_of_id.setdefault(job_id, place) != place:
            raise InputError(f"{path}: {place}: {job_id} again, after {place_of_id[job_id]}; take one out")
        read.append(read_chat(job_id, chat, f"{path}: {place}", tools))
    return read


def _list_chats(results: _Results) -> Iterator[tuple[str, str, list[ChatMessage]]]:
    for index, run in enumerate(results.simulations):
        chat = [message for message in run.messages or () if _is_seen(message)]
        # The agent's greeting is a fixed text, which no model wrote.
        greeting = [*takewhile(lambda message: message.role == "assistant", chat)]
        told = "\n\n".join([results.info.environment_info.policy, *(message.content or "" for message in greeting)])
        system = ChatMessage(role="system", content=told)
        rest = [*map(_convert_message, chat[len(greeting) :])]
        yield f"simulations[{index}].messages", f"task-{run.task_id}-trial-{run.trial or 0}", [system, *rest]


def _is_seen(message: _Message) -> bool:
    """Tell what the agent sees from the simulated user's own tools."""
    return message.requestor != "user" and not (message.role == "user" and message.tool_calls)


def _convert_message(message: _Message) -> ChatMessage:
    calls = [
        Call(function=Function(name=call.name, arguments=json.dumps(call.arguments)))
        for call in message.tool_calls or ()
    ]
    return ChatMessage(role=message.role, content=message.content, tool_calls=calls or None)
