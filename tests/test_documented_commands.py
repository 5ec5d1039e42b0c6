"""The commands of README, guides and examples are ones that `agentcache` takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcache.cli.options import build_parser
from agentcache.jobs.settings import lead_with_workload

ROOT = Path(__file__).parents[1]
# May be left out.
IN_BRACKETS = re.compile(r"\[[^]]*\]")
COMMAND = re.compile(r"^    agentcache ((?:serve|replay|simulate|plan|profile|report|doctor|knobs) .*)$", re.MULTILINE)


def list_commands() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"):
        for found in COMMAND.finditer(page.read_text().replace("\\\n", " ")):
            # With dots it is half a command.
            if "..." not in found[1]:
                yield page.name, found[1]


COMMANDS = [*list_commands()]


def test_there_are_commands_to_look_at() -> None:
    assert len({page for page, _ in COMMANDS}) > 6


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_documented_command_is_taken(page: str, command: str) -> None:  # noqa: ARG001
    words = shlex.split(IN_BRACKETS.sub("", command), comments=True)
    words = words[: words.index("--")] if "--" in words else words
    if words[0] == "serve":
        build_parser().parse_known_args(words)
        return
    options = build_parser().parse_args(lead_with_workload(words))
    if words[0] == "simulate":
        assert options.policy
    if words[0] == "replay":
        assert options.base_url or (options.model and options.policy)
