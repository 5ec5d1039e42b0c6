from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from made_settings import make_settings

from agentcache.errors import InputError
from agentcache.replay.settings import read_headers
from agentcache.report.events import EVENTS_FILE, RUN_FILE

EMBEDDED: dict[str, Any] = {"model": "tiny", "policies": ("vllm", "lru")}
EXTERNAL: dict[str, Any] = {"base_url": "http://127.0.0.1:8000/v1"}


def refusal(out: Path, **changes: Any) -> str:
    before = sorted(out.parent.iterdir())
    with pytest.raises(InputError) as caught:
        make_settings(out, **changes).check()
    assert sorted(out.parent.iterdir()) == before
    text = str(caught.value)
    assert text.count("\n") == 0
    return text


@pytest.mark.parametrize("settings", [EMBEDDED, EXTERNAL, EXTERNAL | {"model": "served"}], ids=str)
def test_what_can_work_is_accepted_and_touches_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    make_settings(tmp_path / "out", **settings).check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (EMBEDDED | {"workload": "chat"}, "workload chat: unknown; choose from bfcl"),
        (EMBEDDED | {"policies": ("lru", "fifo")}, "--policy fifo: unknown; choose from vllm, lru"),
        (EMBEDDED | {"policies": ("lru", "lru")}, "--policy: the same policy is given twice; give each once"),
        (EMBEDDED | {"policies": ()}, "replay: give --model and --policy, or --base-url"),
        (EMBEDDED | {"model": None}, "replay: give --model and --policy, or --base-url"),
        ({}, "replay: give --model and --policy, or --base-url of a server that runs already"),
        (EXTERNAL | {"policies": ("lru",)}, "--base-url: the server has its own policy, cache and options; leave"),
        (EXTERNAL | {"kv_tokens": 4096}, "--base-url: the server has its own policy, cache and options; leave"),
        (EXTERNAL | {"engine_options": ("--dtype",)}, "--base-url: the server has its own policy, cache and options"),
        (
            EMBEDDED | {"tokenizer": "tiny"},
            "--tokenizer tiny: goes with --base-url; an engine here has its model's own",
        ),
        (EMBEDDED | {"headers": {"Via": "a"}}, "--header Via: goes with --base-url; an engine here needs none"),
        (EMBEDDED | {"seed": -1}, "--seed -1: give 0 or more"),
        (EMBEDDED | {"request_timeout_s": 0.0}, "--request-timeout 0: give a number of seconds above 0"),
        (EMBEDDED | {"request_timeout_s": float("nan")}, "--request-timeout nan: give a number of seconds above 0"),
        (EMBEDDED | {"kv_tokens": 0}, "--kv-tokens 0: give the number of tokens"),
        (EXTERNAL | {"kv_tokens": 0}, "--kv-tokens 0: give the number of tokens"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    assert re.match(re.escape(text), refusal(tmp_path / "out", **changes))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [("X-data-parallel-rank:2", "X-data-parallel-rank", "2"), ("Via : a:b ", "Via", "a:b"), ("Empty:", "Empty", "")],
)
def test_a_header_is_a_name_and_a_value(text: str, name: str, value: str) -> None:
    assert read_headers([text]) == {name: value}


@pytest.mark.parametrize("text", ["rank", ":2", "a b:2", "rank:\n2\r\nHost:x", "rank:\u00fc", ""])
def test_what_no_client_could_send_is_no_header(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--header {text!r}: write NAME:VALUE")):
        read_headers(["Via:a", text])


def test_a_file_is_no_folder_for_a_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    assert refusal(out, **EMBEDDED) == f"--out {out}: {out} is a file; give a folder"
    assert out.read_text() == "mine"


@pytest.mark.parametrize("name", [RUN_FILE, EVENTS_FILE])
@pytest.mark.parametrize("overwrite", [False, True])
def test_another_run_is_kept_unless_it_is_to_be_replaced(tmp_path: Path, name: str, overwrite: bool) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    if overwrite:
        make_settings(out, overwrite=True, **EMBEDDED).check()
    else:
        wanted = f"--out {out}: holds another run; give another folder, or --overwrite to replace it"
        assert refusal(out, **EMBEDDED) == wanted
    assert (out / name).read_text() == "mine"


def test_other_files_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    make_settings(tmp_path, **EMBEDDED).check()
