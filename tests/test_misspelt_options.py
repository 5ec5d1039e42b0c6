"""Commands, options and values that are misspelt: one line, which names what was probably meant."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from agentcache.cli import main
from agentcache.cli.options import build_parser
from agentcache.errors import InputError
from agentcache.server.arguments import OWN_OPTIONS, build_arguments


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("agentcache: ")
    assert err.count("\n") == 1
    return err.removeprefix("agentcache: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("arguments", "start", "meant"),
    [
        (["sreve", "tiny"], "argument COMMAND: invalid choice: 'sreve'", "serve"),
        (
            ["simulate", "bfcl", "--out=x", "--polcy", "lru"],
            "simulate: unrecognized arguments: --polcy lru",
            "--policy",
        ),
        (["plan", "x", "--tagret=3"], "plan: unrecognized arguments: --tagret=3", "--target"),
        (["plan", "x", "--oout=a/folder/far/down"], "plan: unrecognized arguments: --oout=a/folder", "--out"),
        (["replay", "bfcl", "--out=x", "more", "--ratee=1"], "replay: unrecognized arguments: more --ratee", "--rate"),
        (["replay", "bfcl", "--out=x", "--arrival=poison"], "replay: argument --arrival: invalid choice", "poisson"),
        (["simulate", "bfcl", "--out=x", "--policy=lru", "--routing=stiky"], "--routing stiky: choose from", "sticky"),
    ],
)
def test_a_misspelt_word_is_answered_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], start: str, meant: str
) -> None:
    text = refuse(capsys, *arguments)
    assert text.startswith(start)
    assert text.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: COMMAND; agentcache --help lists what there is"),
        (["plan"], "plan: the following arguments are required: FILE; agentcache plan --help lists what there is"),
        (["doctor", "a", "b"], "doctor: unrecognized arguments: b; agentcache doctor --help lists what there is"),
    ],
)
def test_where_nothing_is_close_the_help_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert refuse(capsys, *arguments) == text


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (["--polcy", "lru"], "--policy"),
        (["--agent_cache", "pins.budget=1"], "--agentcache"),
        (["--max-model-length", "64"], "--max-model-len"),
        (["--scheduling-policy", "prioriti"], "priority"),
        (["--enable-auto-tool-choice", "--tool-call-parser", "hermse"], "hermes"),
    ],
)
def test_serve_knows_vllms_options_and_its_own(options: list[str], meant: str) -> None:
    with pytest.raises(InputError) as refused:
        build_arguments("tiny", options)
    assert str(refused.value).endswith(f"; did you mean {meant}?")


def test_no_short_option_is_suggested_for_a_long_one() -> None:
    with pytest.raises(InputError, match=r"unrecognized arguments: --task embed$"):
        build_arguments("tiny", ["--task", "embed"])


def test_the_options_of_serve_are_all_known_to_vllms_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    options = re.findall(r"^  (-[\w-]+)(?:, (-[\w-]+))?", capsys.readouterr().out, re.MULTILINE)
    assert set(chain.from_iterable(options)) - {"-h", "--help", ""} == set(OWN_OPTIONS)


def test_serve_passes_on_what_it_does_not_know() -> None:
    options, unknown = build_parser().parse_known_args(["serve", "tiny", "--polcy", "lru"])
    assert (options.model, unknown) == ("tiny", ["--polcy", "lru"])


def test_a_misspelt_option_leaves_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refuse(capsys, "simulate", "bfcl", "--polcy", "lru", "--out", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []
