from __future__ import annotations

import json
import multiprocessing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from endless_recording import make_header
from vllm.config import VllmConfig

from agentcache.engine.observe.recorder import begin_recording
from workloads.recording.line import Header, Line
from workloads.recording.line_maker import LineMaker, RecordedRequest
from workloads.recording.writer import LineFile


def _make(**changes: object) -> RecordedRequest:
    request = {
        "arrived_s": 12.0,
        "first_token_s": 12.5,
        "ended_s": 14.0,
        "prompt_tokens": 25,
        "output_tokens": 20,
        "cached_tokens": 16,
        "hashes": [b"one", b"two", b"three", b"four"],
        "session": "secret session",
        "thread": "secret agent",
        "tools": ["secret_tool"],
        "end": "calls",
        "name": "request",
    }
    return RecordedRequest(**{**request, **changes})  # type: ignore[arg-type]


def _read(maker: LineMaker, request: RecordedRequest) -> dict[str, object]:
    line = maker.make(request, 0, None)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    return dict(json.loads(line))


def _maker(*, tool_names: bool = False) -> LineMaker:
    return LineMaker(key=begin_recording(VllmConfig()).key, block_tokens=10, tool_names=tool_names, started_s=10.0)


def test_a_line_has_times_sizes_and_blocks() -> None:
    line = _read(_maker(), _make())
    assert (line["timestamp"], line["ttft_ms"], line["latency_ms"]) == (2000, 500, 2000)
    assert (line["input_length"], line["output_length"], line["cached_length"]) == (25, 20, 16)
    assert isinstance(line["hash_ids"], list)
    assert isinstance(line["reply_ids"], list)
    assert (len(line["hash_ids"]), len(line["reply_ids"])) == (3, 1)
    assert all(0 <= number < 2**53 for number in line["hash_ids"])


def test_equal_blocks_have_equal_ids_in_one_recording() -> None:
    maker = _maker()
    first, second = (_read(maker, _make(name=name)) for name in "ab")
    assert first == second
    other = _read(maker, _make(hashes=[b"one", b"else"]))
    assert isinstance(other["hash_ids"], list)
    assert isinstance(first["hash_ids"], list)
    assert [mine == theirs for mine, theirs in zip(first["hash_ids"], other["hash_ids"], strict=True)] == [
        True,
        False,
        False,
    ]


def test_two_recordings_share_no_id() -> None:
    first, second = _read(_maker(), _make()), _read(_maker(), _make())
    for field in ("hash_ids", "reply_ids", "called"):
        assert not {*first[field]} & {*second[field]}  # type: ignore[misc]
    assert first["session"] != second["session"]
    assert first["thread"] != second["thread"]


def test_a_main_agent_has_no_thread() -> None:
    maker = _maker()
    assert "thread" not in _read(maker, _make(thread=None))
    first, second, other = (_read(maker, _make(thread=name))["thread"] for name in ("one", "one", "other"))
    assert first == second != other


def _engine_at(port: int) -> Any:
    """An engine's configuration, as far as a recording's beginning looks at it."""
    return SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_master_port=port))


def test_engines_of_one_start_give_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in its process, which counts for itself; tests/server/test_two_api_servers.py has real ones."""
    found = []
    for _ in range(2):
        monkeypatch.setattr("agentcache.engine.observe.recorder._numbers", count())
        found.append([begin_recording(_engine_at(29500)) for _ in range(2)])
    assert found[0] == found[1]
    first, then = found[0]
    assert first.key != then.key, "they go on with another policy"
    assert first.id != then.id


def test_a_secret_of_one_start_is_that_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [begin_recording(VllmConfig()) for _ in range(2)]
    for port, authkey in ((29500, b"one"), (29600, b"one"), (29500, b"another")):
        monkeypatch.setattr("agentcache.engine.observe.recorder._numbers", count())
        monkeypatch.setattr(multiprocessing.current_process(), "authkey", authkey)
        starts.append(begin_recording(_engine_at(port)))
    assert len({start.key for start in starts} | {start.id for start in starts}) == 10


def test_names_stand_in_no_line_unless_asked_for() -> None:
    line = _maker().make(_make(), 0, None)
    assert b"secret" not in line
    assert _read(_maker(tool_names=True), _make())["called"] == ["secret_tool"]


def test_a_prompt_that_fills_no_block_has_an_id_of_its_own() -> None:
    maker = _maker()
    first, second = (_read(maker, _make(prompt_tokens=5, output_tokens=2, hashes=[], name=name)) for name in "ab")
    assert first["hash_ids"] != second["hash_ids"]
    assert "reply_ids" not in first


def test_full_files_move_on_and_the_last_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"before\n")
    file = LineFile(path, max_bytes=8, files=3)
    begins = []
    for number in range(8):
        begins.append(file.begins_file)
        file.write(b"line%d\n" % number)
    file.close()
    assert begins == [True, False] * 4
    contents = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert contents == {
        "r.jsonl": b"line6\nline7\n",
        "r.jsonl.1": b"line4\nline5\n",
        "r.jsonl.2": b"line2\nline3\n",
    }


def test_no_other_user_reads_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    notes = tmp_path / "r.jsonl.2"
    for each, text in ((path, '{"recording":1}\n'), (tmp_path / "r.jsonl.1", '{"recording":2}\n'), (notes, "notes")):
        each.write_text(text)
        each.chmod(0o644)
    file = LineFile(path, max_bytes=8, files=4)
    file.write(b"new\n")
    file.close()
    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert modes == {"r.jsonl": 0o600, "r.jsonl.1": 0o600, "r.jsonl.2": 0o600, "r.jsonl.3": 0o644}
    assert (tmp_path / "r.jsonl.3").read_text() == "notes", "what is no recording stays as it is"


class FullDisk:
    """Takes three bytes of a line."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, line: bytes) -> int:
        return int(self._file.write(line[:3]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_line_that_does_not_fit_the_disk_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    file = LineFile(path, max_bytes=100, files=1)
    file.write(b"whole\n")
    monkeypatch.setattr(file, "_file", FullDisk(file._file))
    with pytest.raises(OSError, match="takes no more"):
        file.write(b"too much\n")
    assert path.read_bytes() == b"whole\n"


def test_a_file_begins_with_the_first_line_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"before\n")
    file = LineFile(path, max_bytes=100, files=2)
    open_file = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *args, **options: FullDisk(open_file(*args, **options)))
        with pytest.raises(OSError, match="takes no more"):
            file.write(b"too much\n")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"r.jsonl": b"before\n"}
    assert file.begins_file
    file.write(b"whole\n")
    assert path.read_bytes() == b"whole\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"recording":1}\n{"b":2}\n{"c"', b'{"recording":1}\n{"b":2}\n'),
        (b'{"recording":1}\n' + b"x" * 200_000, b'{"recording":1}\n'),
        (b"whose is\nthis", b"whose is\nthis"),
    ],
    ids=["a little", "much", "of another file"],
)
def test_a_restart_takes_an_unfinished_line_off(before: bytes, after: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(before)
    file = LineFile(path, max_bytes=100, files=2)
    file.write(b"new\n")
    file.close()
    assert (path.read_bytes(), (tmp_path / "r.jsonl.1").read_bytes()) == (b"new\n", after)


@pytest.mark.parametrize("header", [None, make_header("start")], ids=["no header", "header"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"session": None, "first_token_s": None, "tools": [], "end": "aborted", "cached_tokens": 0},
        {"hashes": [], "prompt_tokens": 5, "output_tokens": 0, "first_token_s": 12.0},
        {"tools": ['a"b\\c\n\x00\x1f\x7f', "Wörter/\u2028", "look", "look"], "arrived_s": 10.0, "ended_s": 10.0000004},
        {"arrived_s": 123456.7891, "first_token_s": 123456.78914, "ended_s": 9876543.21},
    ],
)
def test_a_line_is_written_as_its_reader_would_write_it(changes: dict[str, Any], header: Header | None) -> None:
    for lost in (0, 3):
        line = _maker(tool_names=True).make(_make(**changes), lost, header)
        assert Line.model_validate_json(line).model_dump_json(exclude_defaults=True).encode() + b"\n" == line


def test_an_id_that_is_forgotten_is_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.recording.line_maker._KEPT_IDS", 2)
    maker = _maker()
    assert _read(maker, _make()) == _read(maker, _make())
    assert maker._block_id.cache_info().currsize == 2
