"""Splits a shell command line into the commands that it really runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

MAX_LINE = 4096
MAX_COMMANDS = 64
_MAX_DEPTH = 4

# What follows on the operator's own line stays; the document itself is data, whatever it looks like.
_HERE_DOCUMENT = re.compile(
    r"(?<!<)<<-?[ \t]*['\"\\]?(\w+)['\"]?([^\n]*)\n.*?(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
# Possessive: a long word that ends badly is not tried again from its middle.
_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t\r]|\\\n)++)
      | (?P<comment>\#[^\n]*+)
      | (?P<redirect>(?:\d++|&)?[<>]++[&|]?)
      | (?P<separator>[;&|()\n`]++)
      | (?P<word>(?:[^\s;&|()<>'"\\`]|\\.|\\\Z|'[^']*+(?:'|\Z)|"(?:[^"\\]|\\.)*+(?:"|\\?\Z))++)""",
    re.DOTALL | re.VERBOSE,
)
_QUOTED = re.compile(r"""'([^']*)'?|"((?:[^"\\]|\\.)*)"?|\\(.?)""", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_SHELL_SCRIPT_OPTION = re.compile(r"-[a-z]*c[a-z]*")

_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "fish"})
_OPENING_WORDS = frozenset({"do", "then", "else", "elif", "if", "while", "until", "!", "{"})
_STRUCTURE_WORDS = frozenset({"for", "case", "select", "function", "done", "fi", "esac", "}", "in"})
# Programs that run what follows them: their options that take a value, and how many operands come first.
_WRAPPERS: dict[str, tuple[frozenset[str], int]] = {
    "sudo": (frozenset({"-u", "-g", "-h", "-p", "-C", "-T", "-R", "-D"}), 0),
    "doas": (frozenset({"-u"}), 0),
    "env": (frozenset({"-u", "-C"}), 0),
    "timeout": (frozenset({"-s", "-k", "--signal", "--kill-after"}), 1),
    "nice": (frozenset({"-n"}), 0),
    "ionice": (frozenset({"-c", "-n"}), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e"}), 0),
    "xargs": (frozenset({"-n", "-I", "-P", "-L", "-d", "-s", "-E", "-a"}), 0),
    "flock": (frozenset({"-w", "-E"}), 1),
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "time": (frozenset({"-f", "-o"}), 0),
    "exec": (frozenset({"-a"}), 0),
    "command": (frozenset(), 0),
    "builtin": (frozenset(), 0),
    "npx": (frozenset({"-p", "--package"}), 0),
    "uv run": (frozenset({"-p", "--python", "--with", "--group", "--extra", "--directory"}), 0),
    "poetry run": (frozenset(), 0),
    "pipenv run": (frozenset(), 0),
    "conda run": (frozenset({"-n", "-p", "--name", "--prefix"}), 0),
    "pnpm exec": (frozenset(), 0),
    "npm exec": (frozenset(), 0),
    "bundle exec": (frozenset(), 0),
}


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A program, by its name without a path, its arguments, and whether a pipe feeds it."""

    program: str
    arguments: tuple[str, ...]
    piped: bool


def split_line(line: str) -> list[ShellCommand]:
    """Split into the commands in order; `sudo`, `env A=b`, `timeout 5`, `bash -c '...'` and the like are seen through.

    Any text gives some answer. What lies beyond MAX_LINE characters (here-documents not counted) or MAX_COMMANDS is
    not read.
    """
    return list(islice(_split(line, piped=False, depth=0), MAX_COMMANDS))


def resolve_words(words: Sequence[str]) -> list[ShellCommand]:
    """Do the same for a command that comes as a list of words, such as ["bash", "-lc", "cd x && make"]."""
    return list(islice(_resolve(list(words), piped=False, depth=0), MAX_COMMANDS))


def _split(line: str, *, piped: bool, depth: int) -> Iterator[ShellCommand]:
    for words, fed in _simple_commands(_HERE_DOCUMENT.sub(r"<<\1\2\n", line)[:MAX_LINE]):
        yield from _resolve(words, piped=piped or fed, depth=depth)


def _simple_commands(line: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the words between separators, without redirections, and whether the separator before was a pipe."""
    words: list[str] = []
    piped = is_target = False
    for token in _TOKEN.finditer(line):
        text = token.group()
        match token.lastgroup:
            case "word":
                if not is_target:
                    words.append(_unquote(text))
                is_target = False
            case "redirect":
                is_target = True
            case "separator":
                if words:
                    yield words, piped
                words, is_target = [], False
                piped = text.strip() in ("|", "|&")
            case _:
                pass
    if words:
        yield words, piped


def _unquote(word: str) -> str:
    return _QUOTED.sub(lambda part: part[1] or part[2] or part[3] or "", word)


def _resolve(words: list[str], *, piped: bool, depth: int) -> Iterator[ShellCommand]:
    """Return the command that the words run in the end; none for assignments and the shell's own structure."""
    words = _without_prefix(words)
    while words and (rest := _behind_wrapper(words)) is not None:
        words = _without_prefix(rest)
    if not words or words[0] in _STRUCTURE_WORDS:
        return
    script = _inner_script(words) if depth < _MAX_DEPTH else None
    if script is not None:
        yield from _split(script, piped=piped, depth=depth + 1)
    elif any(character.isalpha() for character in words[0]):
        yield ShellCommand(_program(words[0]), tuple(words[1:]), piped)


def _without_prefix(words: list[str]) -> list[str]:
    start = 0
    while start < len(words) and (words[start] in _OPENING_WORDS or _ASSIGNMENT.match(words[start])):
        start += 1
    return words[start:]


def _behind_wrapper(words: list[str]) -> list[str] | None:
    """Return what the wrapper in front runs; None if there is no wrapper, or it runs nothing."""
    program = _program(words[0])
    start = 1
    wrapper = _WRAPPERS.get(program)
    if wrapper is None and len(words) > 1:
        wrapper = _WRAPPERS.get(f"{program} {words[1]}")
        start = 2
    if wrapper is None:
        return None
    value_options, operands = wrapper
    while start < len(words) and words[start].startswith("-"):
        start += 2 if words[start] in value_options else 1
    while start < len(words) and _ASSIGNMENT.match(words[start]):
        start += 1
    return words[start + operands :] or None


def _inner_script(words: list[str]) -> str | None:
    """Return the text that `bash -c` or `eval` runs; None for any other command."""
    program = _program(words[0])
    if program == "eval":
        return " ".join(words[1:])
    if program not in _SHELLS:
        return None
    for index, word in enumerate(words[1:-1], start=1):
        if not word.startswith("-"):
            return None
        if _SHELL_SCRIPT_OPTION.fullmatch(word):
            return words[index + 1]
    return None


def _program(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2] or word
