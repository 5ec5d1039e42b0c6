"""The commands of all pages are ones that are taken, and each runs in a test or is marked as one that needs a GPU."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from converters.families import FamilyLaw
from test_docs import GUIDES, name_of

from agentcache.cli.options import build_parser
from agentcache.jobs.settings import lead_with_workload

ROOT = Path(__file__).parents[1]
GPU_MARK = "# GPU"
# May be left out.
IN_BRACKETS = re.compile(r"\[[^]]*\]")
OURS = re.compile(r"agentcache (?:serve|replay|simulate|plan|profile|report|doctor|knobs)\b")
# How a command begins, behind variables that it sets. All other lines of code are output, or a file's.
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*((?:agentcache [a-z]|(?:\S*/)?python |make |curl |pip |vllm serve |vllm-router |docker ).*)"
)
# Which test runs a command of this beginning, on the CPU.
RUN_BY = {
    "agentcache serve": "tests/server/test_openai_api.py",
    "agentcache replay": "tests/replay/test_replay_engine.py",
    "agentcache simulate": "tests/sim/test_simulate_command.py",
    "agentcache plan": "tests/plan/test_plan_command.py",
    "agentcache report": "tests/test_cli_process.py",
    "agentcache doctor": "tests/doctor/test_doctor_command.py",
    "agentcache knobs": "tests/test_knobs.py",
    "vllm serve": "tests/server/test_plain_serve.py",
    "vllm-router": "tests/server/test_router_in_front.py",
    "curl http://127.0.0.1:8000/agentcache/": "tests/server/test_job_routes.py",
    "curl -X DELETE http://127.0.0.1:8000/agentcache/": "tests/server/test_job_routes.py",
    "curl -X POST 'http://ROUTER:8080/remove_worker": "tests/server/test_router_in_front.py",
    "python benchmarks/convert.py": "tests/converters/test_convert.py",
    "python benchmarks/clairvoyant.py": "tests/benchmarks/test_clairvoyant.py",
    "python benchmarks/compare.py": "tests/benchmarks/test_compare_help.py",
    "python benchmarks/family_figures.py": "tests/benchmarks/test_replica_rows.py",
    "python benchmarks/page_parts.py": "tests/benchmarks/test_page_parts.py",
    "python benchmarks/tables.py": "tests/benchmarks/test_tables.py",
    # By tests/test_house.py.
    "python benchmarks/one_turn.py": "benchmarks/house.py",
    "python benchmarks/vllm_diff.py": "tests/test_vllm_diff.py",
    "python tests/vllm_environment.py": "tests/test_vllm_environment.py",
    "python examples/": "tests/examples/test_examples.py",
    "python -m pytest": "Makefile",
    "pip install build && python -m build": "tests/test_distribution.py",
    "pip install '.[": "tests/test_distribution.py",
    "make ": "Makefile",
}
# What no test runs: it asks an index of packages, or takes many minutes. Options are looked at all the same.
NOT_RUN = (
    "pip index versions",
    "pip install 'openai-agents",
    "python benchmarks/side_by_side.py",
    "python benchmarks/simulations.py",
    "python benchmarks/unfair_loads.py",
    "python benchmarks/scheduler_overhead.py",
    "python benchmarks/jitter.py",
    "python benchmarks/tenants.py",
)


def list_code(text: str) -> Iterator[str]:
    """List the lines of code blocks: those that are fenced, and those with four spaces or more, also within a list."""
    joined = text.replace("\\\n", " ")
    for block in re.findall(r"^```.*?\n(.*?)^```$", joined, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    unfenced = re.sub(r"^```.*?^```$", "", joined, flags=re.MULTILINE | re.DOTALL)
    yield from (line.strip() for line in unfenced.splitlines() if line.startswith("    "))


def list_commands(text: str) -> Iterator[tuple[str, str]]:
    """List the commands, without variables and dots, and as they stand."""
    for line in list_code(text):
        if found := COMMAND.fullmatch(line):
            yield re.sub(r"^\S*/python ", "python ", " ".join(found[1].split())), line


COMMANDS = [(name_of(page), *found) for page in GUIDES for found in list_commands(page.read_text())]
OF_OURS = [(page, command) for page, command, _ in COMMANDS if OURS.match(command) and "..." not in command]


def test_commands_are_told_from_output() -> None:
    text = (
        "    agentcache plan x   # why\n    agentcache 5 s\n```\nA=1 .venv/bin/python z.py\n```\n1. b\n\n        make c"
    )
    assert [command for command, _ in list_commands(text)] == ["python z.py", "agentcache plan x # why", "make c"]


def test_there_are_commands_to_look_at() -> None:
    assert len({page for page, _ in OF_OURS}) > 12


@pytest.mark.parametrize(("page", "command", "line"), COMMANDS)
def test_a_test_stands_behind_each_command(page: str, command: str, line: str) -> None:  # noqa: ARG001
    if line.endswith(GPU_MARK) or command.startswith(NOT_RUN):
        return
    (test,) = {RUN_BY[begin] for begin in RUN_BY if command.startswith(begin)}
    text = (ROOT / test).read_text()
    assert all(program in text for program in re.findall(r"benchmarks/(\w+)\.py", command))


@pytest.mark.parametrize("command", sorted({command for _, command, _ in COMMANDS if "benchmarks/" in command}))
def test_options_of_programs_are_theirs(command: str) -> None:
    words = shlex.split(command.partition(" -- ")[0], comments=True)
    program = ROOT / next(word for word in words if word.endswith(".py"))
    # Its parser may stand in another module; `agentcache` takes what follows its subcommand.
    text = "".join(path.read_text() for path in (program, *program.parent.glob("*.py")))
    # Options of another program come as one word, with a space.
    named = [word for word in words if word.startswith("--") and " " not in word and word != "--help"]
    # `convert.py families` has an option for each field of what it draws by.
    drawn = {f"--{each.name.replace('_', '-')}" for each in fields(FamilyLaw)}
    assert [
        each for each in named if f'"{each}"' not in text and each not in drawn and "clairvoyant" not in command
    ] == []


@pytest.mark.parametrize(
    "target", sorted({command.split()[1] for _, command, _ in COMMANDS if command.startswith("make ")})
)
def test_targets_of_make_are_there(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("page", "command"), OF_OURS)
def test_a_documented_command_is_taken(page: str, command: str) -> None:  # noqa: ARG001
    words = shlex.split(IN_BRACKETS.sub("", command), comments=True)[1:]
    words = words[: words.index("--")] if "--" in words else words
    if words[0] == "serve":
        build_parser().parse_known_args(words)
        return
    options = build_parser().parse_args(lead_with_workload(words))
    if words[0] == "simulate":
        assert options.policy
    if words[0] == "replay":
        assert options.base_url or (options.model and options.policy)
