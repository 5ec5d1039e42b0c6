"""The examples that `benchmarks/compare.py --help` shows are commands that agentcache takes."""

from __future__ import annotations

import shlex

import compare
import pytest

from agentcache.cli.options import build_parser
from agentcache.config_reader import read_knobs
from agentcache.policy.registry import find_policy

SHOWN = (compare.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0].replace("\\\n", " ")
# The continued lines of an example begin with a dash, or with `--` and the command.
EXAMPLES = [f"python {each}" for each in " ".join(SHOWN.split()).split("python ")[1:]]


def test_there_are_examples_to_look_at() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_names_policies_knobs_and_a_command(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(example)
    monkeypatch.setattr("sys.argv", words[1:])
    options = compare.read_options()
    for arm in options.arms:
        find_policy(arm.policy)
        read_knobs(arm.knobs)
    run = next(compare.plan_runs(options.arms, options.rates, options.seeds))
    build_parser().parse_args([*options.command, *run.arguments(), "--out", "somewhere", "--overwrite"])
