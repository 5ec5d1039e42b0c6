"""Names what a gap between two turns is filed under: the tools called and, where it matters, their commands."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from tool_runtime.learning.shell_line import ShellCommand, resolve_words, split_line

MAX_NAME = 64
MAX_COMMAND = 160
# Longer arguments carry files, not commands, and reading them would take milliseconds.
MAX_ARGUMENTS = 65_536
_MAX_COMMANDS = 6
MAX_CALLS = 1000

_COMMAND_ARGUMENTS = ("command", "cmd")
# They take no time of their own, so beside other commands they tell nothing.
_INSTANT = re.compile(
    r"cd|pushd|popd|export|unset|set|shopt|source|\.|:|true|false|echo|printf|pwd|test|\[\[?|mkdir|alias|umask|ulimit|"
    r"trap|wait|exit|return|shift|local|declare|readonly|which|type|hash"
)
# Behind a pipe they take as long as what feeds them.
_FILTER = re.compile(r"head|tail|[ef]?grep|rg|wc|sort|uniq|cut|tr|sed|awk|tee|cat|less|more|jq|nl|column")
_INTERPRETER = re.compile(r"python|node|bash|sh|zsh|ruby|perl|php|deno|bun|Rscript")
# The first word behind them says what is done, and so how long it takes.
_WITH_SUBCOMMAND = re.compile(
    r"git|gh|npm|yarn|pnpm|pip|uv|poetry|cargo|go|rustup|docker|docker-compose|podman|kubectl|helm|terraform|make|just|"
    r"apt|apt-get|conda|mamba|brew|systemctl|dotnet|mvn|gradlew?|bazel|tox|nox|sleep|pre-commit"
)
_VERSIONED = re.compile(r"(python|pip)[\d.]+")


# By these an agent asks its human: Claude Code's, Gemini CLI's, OpenCode's and Codex's.
_QUESTIONS = frozenset({"AskUserQuestion", "ask_user", "question", "request_user_input"})


@dataclass(frozen=True, slots=True, order=True)
class ToolKey:
    """A tool by name, and the commands it ran, empty where its arguments do not tell durations apart."""

    tool: str
    command: str = ""

    @property
    def coarse(self) -> ToolKey:
        """The tool's own key."""
        return ToolKey(self.tool)

    @property
    def asks_human(self) -> bool:
        """Whether one of a turn's calls asks the human, for whose answer the turn then waits."""
        return not _QUESTIONS.isdisjoint(self.tool.split("+"))


# The key of a turn without a call: what comes next comes from a human. A model cannot call a tool without a name.
HUMAN = ToolKey("")

# The key of a call of a tool that the client has not declared, whatever the model has made of its name.
UNDECLARED = ToolKey("(undeclared)")

# The key of a reply that another engine decodes: whether it calls a tool, and which, is not known here.
ELSEWHERE = ToolKey("(decoded elsewhere)")


def tool_key(name: str, arguments: str) -> ToolKey:
    """Return the key of a call as the model wrote it, `arguments` being JSON text; the tool's key if that is broken."""
    return ToolKey(key_name(name), _bounded(_encodable(_commands(_command_argument(arguments))), MAX_COMMAND))


def tool_keys(calls: Iterable[tuple[str, str]]) -> list[ToolKey]:
    """Return the keys of a turn's calls, of 1,000 at most. Behind 64 kB of arguments they are those of the tools."""
    keys = []
    left = MAX_ARGUMENTS
    for name, arguments in islice(calls, MAX_CALLS):
        left -= len(arguments)
        keys.append(tool_key(name, arguments if left >= 0 else ""))
    return keys


def key_name(tool: str) -> str:
    """Return a tool's name as its keys have it."""
    return _bounded(_encodable(tool), MAX_NAME) or "?"


def turn_key(calls: Sequence[ToolKey]) -> ToolKey:
    """Return a whole turn's key: HUMAN without calls, else one for all, because the next turn waits for all of them.

    Calls of one tool side by side keep the tool's key; different tools have a key of their own.
    """
    if not calls:
        return HUMAN
    tools = "+".join(sorted({call.tool for call in calls}))
    commands = " & ".join(sorted({call.command for call in calls if call.command}))
    return ToolKey(_bounded(tools, MAX_NAME), _bounded(commands, MAX_COMMAND))


def _command_argument(arguments: str) -> str | list[str] | None:
    if len(arguments) > MAX_ARGUMENTS:
        return None
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    for name in _COMMAND_ARGUMENTS:
        value = values.get(name)
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            return value
    return None


def _commands(argument: str | list[str] | None) -> str:
    if not argument:
        return ""
    commands = split_line(argument) if isinstance(argument, str) else resolve_words(argument)
    telling = [command for command in commands if _takes_time(command)]
    labels = dict.fromkeys(_label(command) for command in telling or commands)
    return "; ".join(_first(labels, _MAX_COMMANDS))


def _takes_time(command: ShellCommand) -> bool:
    if command.piped and _FILTER.fullmatch(command.program):
        return False
    return not _INSTANT.fullmatch(command.program)


def _label(command: ShellCommand) -> str:
    program = _VERSIONED.sub(r"\1", command.program)
    arguments = command.arguments
    if arguments and _INTERPRETER.fullmatch(program):
        return _interpreter_label(program, arguments)
    if _WITH_SUBCOMMAND.fullmatch(program):
        return " ".join([program, *_first((word for word in arguments if not word.startswith("-")), 1)])
    return program


def _interpreter_label(program: str, arguments: tuple[str, ...]) -> str:
    for index, word in enumerate(arguments):
        if word == "-m" and index + 1 < len(arguments):
            return _label(ShellCommand(arguments[index + 1], arguments[index + 2 :], piped=False))
        if word in ("-c", "-e", "-"):
            return f"{program} {word}"
        if not word.startswith("-"):
            return f"{program} {word.rpartition('/')[2]}"
    return program


def _first(words: Iterable[str], count: int) -> list[str]:
    return [word for word, _ in zip(words, range(count), strict=False)]


def _encodable(text: str) -> str:
    """Replace half a surrogate pair, which JSON can escape: UTF-8 has no place for it, and keys go to processes."""
    return text.encode("utf-8", "replace").decode()


def _bounded(text: str, limit: int) -> str:
    """Return the text itself, or its beginning and a digest of all of it, in `limit` characters."""
    if len(text) <= limit:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{text[: limit - len(digest) - 1]}#{digest}"


# A command has a number of its own from its so many-th end on.
_OWN_NUMBER_ENDS = 8


class KeyNumbers:
    """Gives keys the `numbers`, none twice; when they are used up, commands have their tool's, and tools `others`."""

    def __init__(self, numbers: Sequence[int], *, others: int) -> None:
        """Begin with the first number, which is HUMAN's."""
        self._left = iter(numbers)
        self._most_ends = 8 * len(numbers)
        self._others = others
        self._numbers = {HUMAN: next(self._left)}
        self.keys = {number: key for key, number in self._numbers.items()}
        """The key that each number stands for."""
        self._ends: dict[ToolKey, int] = {}

    def number(self, key: ToolKey) -> int:
        """Return the number of a turn that has ended under this key."""
        if key in self._numbers:
            return self._numbers[key]
        coarse = key.coarse
        if key != coarse and self._is_frequent(key) and (number := self._assign(key)) is not None:
            return number
        if coarse in self._numbers:
            return self._numbers[coarse]
        number = self._assign(coarse)
        return self._others if number is None else number

    def _is_frequent(self, key: ToolKey) -> bool:
        # Commands that come once would fill the memory.
        if len(self._ends) > self._most_ends:
            self._ends.clear()
        self._ends[key] = self._ends.get(key, 0) + 1
        return self._ends[key] >= _OWN_NUMBER_ENDS

    def _assign(self, key: ToolKey) -> int | None:
        number = next(self._left, None)
        if number is not None:
            self._numbers[key], self.keys[number] = number, key
            self._ends.pop(key, None)
        return number
