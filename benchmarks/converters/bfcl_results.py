"""Reads official BFCL result files: JSON lines, an entry each, with the log of every step.

Only what function-calling handlers write for web_search is replayed. `inference_log` holds a dict per user turn:

    {"begin_of_turn_query": [messages], "step_0": [{"role": "assistant", "content": [{tool: "JSON arguments"}]},
     {"role": "handler_log", ...}, {"role": "tool", "content": result}, ...], "step_1": ...}

The content of the last step is the answer's text. Lists between the turns (tool states) are no part of a replay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from converters.chat import check_arguments
from converters.left_out import LeftOut
from converters.pace import Pace, pace_jobs
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn
from workloads.bfcl.dataset import read_system_message, read_tools

_QUERY = "begin_of_turn_query"
_STEP = re.compile("step_[0-9]{1,9}")


def read_results(path: Path, *, jobs: int | None, pace: Pace, left_out: LeftOut) -> list[Job]:
    """Read the first `jobs` entries, all for None, with their messages, calls and results.

    Runs that failed are left out, and counted in `left_out` with fields that are not read. Arrivals and tool times are
    drawn, for the files hold none. Raises InputError with path:line where an entry cannot be replayed.
    """
    entries = _read_entries(path, left_out)
    if jobs is not None and not 1 <= jobs <= len(entries):
        raise InputError(f"--jobs {jobs}: {path} holds {len(entries)} entries; give 1 to {len(entries)}")
    tools = read_tools()
    line_of_id: dict[str, int] = {}
    read = []
    for number, entry in entries[:jobs]:
        try:
            job_id, user_turn = entry["id"], _find_user_turn(entry)
            messages = _read_messages(user_turn)
            turns = tuple(_read_turns(user_turn, left_out))
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from None
        if line_of_id.setdefault(job_id, number) != number:
            raise InputError(f"{path}:{number}: id {job_id} again, after line {line_of_id[job_id]}; take one out")
        read.append(Job(job_id, messages, tools, turns))
    return pace_jobs(read, pace)


def _read_entries(path: Path, left_out: LeftOut) -> list[tuple[int, dict[str, Any]]]:
    """Read the entries, numbered by their lines, but for runs that failed."""
    entries = []
    for number, line in _read_lines(path):
        try:
            entry = _parse_entry(line)
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from None
        if "inference_log" not in entry and str(entry.get("result", "")).startswith("Error during inference"):
            left_out.failed += 1
        else:
            entries.append((number, entry))
    if not entries:
        failed = f"{left_out.failed} runs, all of which failed" if left_out.failed else "no entries"
        raise InputError(f"{path}: holds {failed}")
    return entries


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the lines with something on them, numbered."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _parse_entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError):
        raise InputError("not JSON that can be read: it has too many levels, or a number of too many digits") from None
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise InputError("not a BFCL result: no id")
    return entry


def _find_user_turn(entry: Mapping[str, Any]) -> dict[str, Any]:
    if "inference_log" not in entry:
        raise InputError(f"{entry['id']}: no inference_log to replay")
    log = entry["inference_log"]
    if not isinstance(log, list):
        raise InputError(f"{entry['id']}: inference_log is not a list")
    user_turns = [part for part in log if isinstance(part, dict)]
    if len(user_turns) != 1:
        raise InputError(
            f"{entry['id']}: {len(user_turns)} user turns; only entries with one (web_search) are replayed"
        )
    if not entry["id"].startswith("web_search"):
        raise InputError(f"{entry['id']}: only web_search entries are replayed, the tools of others are not known")
    return user_turns[0]


def _read_messages(user_turn: Mapping[str, Any]) -> tuple[Message, ...]:
    query = user_turn.get(_QUERY)
    if not isinstance(query, list) or not query:
        raise InputError(f"no {_QUERY}")
    messages = tuple(_read_message(message) for message in query)
    system = read_system_message()
    # Some handlers send the system message as a user's; those for Claude take it out of the log.
    if any(message["role"] == "system" or message["content"] == system["content"] for message in messages):
        return messages
    return (system, *messages)


def _read_message(message: Any) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputError(f"{_QUERY}: a message without role")
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": _join_text(message.get("content"), _QUERY)}


def _read_turns(user_turn: Mapping[str, Any], left_out: LeftOut) -> Iterator[Turn]:
    names = [name for name in user_turn if _STEP.fullmatch(name)]
    if not names:
        raise InputError("no step_0: the entry has no replies")
    names.sort(key=lambda name: int(name.removeprefix("step_")))
    for name in names[:-1]:
        yield _read_step(name, *_read_log(name, user_turn[name], left_out))
    content, _ = _read_log(names[-1], user_turn[names[-1]], left_out)
    # The official loop also ends at its step limit and at calls that it cannot decode. No request came after
    # these, so they are an answer: its text.
    yield Turn(json.dumps(content) if _has_calls(content) else _join_text(content, names[-1]))


def _read_log(name: str, log: Any, left_out: LeftOut) -> tuple[Any, list[str]]:
    """Read the assistant's content and the results of its calls in one step."""
    if not isinstance(log, list) or not all(isinstance(entry, dict) for entry in log):
        raise InputError(f"{name}: not a list of log entries")
    replies = [entry for entry in log if entry.get("role") == "assistant"]
    if len(replies) != 1:
        raise InputError(f"{name}: {len(replies)} assistant entries instead of one")
    left_out.fields.update(replies[0].keys() - {"role", "content"})
    return replies[0].get("content"), [
        _join_text(entry.get("content"), name) for entry in log if entry.get("role") == "tool"
    ]


def _read_step(name: str, content: Any, results: list[str]) -> Turn:
    if not _has_calls(content):
        problem = "calls as text (the file of a prompting handler)" if results else "text, yet steps follow"
        raise InputError(f"{name}: {problem}; only files of function-calling handlers (-FC) are replayed")
    calls = [
        ToolCall(tool, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for call in content
        for tool, arguments in call.items()
    ]
    if len(calls) != len(results):
        raise InputError(f"{name}: {len(calls)} calls but {len(results)} results")
    for call in calls:
        check_arguments(call, name)
    outcomes = [ToolResult(result, 0.0, _find_error(result)) for result in results]
    return Turn("", tuple(calls), tuple(outcomes))


def _has_calls(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(isinstance(call, dict) for call in content)


def _join_text(content: Any, where: str) -> str:
    """Join text as the handlers log it: a string, null, strings, or parts {"type": "text", "text": ...}."""
    parts = content if isinstance(content, list) else [content or ""]
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise InputError(f"{where}: content is not text")
        texts.append(text)
    return "\n".join(texts)


def _find_error(result: str) -> str | None:
    """Find the error of an official tool ({"error": ...}) or of the loop that called it."""
    if result.startswith("Error during execution"):
        return result
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return None
    return str(value["error"]) if isinstance(value, dict) and "error" in value else None
