from __future__ import annotations

import json
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_lines import BLOCK, HEADER, make_line, write_recording

from agentcache.errors import InputError
from workloads.recording.line import Line, name_file
from workloads.recording.reader import read_recording
from workloads.recording.sessions import build_jobs, load_sessions


def test_broken_lines_are_skipped_named_counted(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.jsonl", *(make_line(time, 5, 5, [time]) for time in (0, 100, 200)))
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join(
            [lines[0], '{"timestamp": 3, "inp', lines[1].replace('"hash_ids": [100]', '"hash_ids": []'), lines[2]]
        )
    )
    recording = read_recording(path)
    assert [line.timestamp for line in recording.requests] == [0, 200]
    (note,) = recording.describe_losses()
    assert note.startswith("Broken lines that were skipped: 2 (")
    assert f"{path}:2: Invalid JSON: control character (\\u0000-\\u001F) found while parsing a string; {path}:3" in note
    assert f"{path}:3: hash_ids: 0 blocks of 10 tokens for an input_length of 5; it needs 1" in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.jsonl: holds no entries"),
        ('{"recording": ', "r.jsonl:1: the first line, which says what the file is, is broken"),
        pytest.param("[" * 100_000, "r.jsonl:1: no whole JSON begins here", id="deep"),
        (
            "time,tokens",
            "r.jsonl: is no recording, which has a line of JSON for each request: `agentcache serve MODEL --record",
        ),
        (json.dumps(make_line(0, 5, 5, [1])), 'but what begins {"timestamp": 0, "input_length": 5'),
        (
            json.dumps({"recording": {**HEADER, "version": 2}}),
            "r.jsonl:1: recording.version: is 2, this agentcache reads 1",
        ),
        (
            json.dumps({"recording": {**HEADER, "version": "1"}}),
            "r.jsonl:1: recording.version: is '1', this agentcache reads 1",
        ),
        (json.dumps({"recording": HEADER}), "r.jsonl: holds no whole line"),
    ],
)
def test_what_is_no_recording_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_recording(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_time_that_goes_backwards_is_refused(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.jsonl", make_line(500, 5, 5, [1]), make_line(0, 5, 5, [2]))
    with pytest.raises(InputError, match=r"r\.jsonl:2: timestamp \+ latency_ms: 100 is before the line above, 600"):
        read_recording(path)


def test_full_files_of_the_same_start_come_first(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.jsonl", make_line(400, 5, 5, [3]))
    write_recording(tmp_path / "r.jsonl.1", make_line(200, 5, 5, [2]))
    write_recording(tmp_path / "r.jsonl.2", make_line(0, 5, 5, [1]), header={**HEADER, "id": "another start"})
    assert [line.hash_ids for line in read_recording(path).requests] == [[2], [3]]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_kill_between_two_renames_hides_no_file(missing: int, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    numbers = [number for number in range(5) if number != missing]
    for number in numbers:
        name = f"r.jsonl.{number}" if number else "r.jsonl"
        write_recording(tmp_path / name, make_line(100 * (9 - number), 5, 5, [number]))
    assert [line.hash_ids for line in read_recording(path).requests] == [[number] for number in reversed(numbers)]
    for each in tmp_path.iterdir():
        each.rename(each.with_name(each.name.replace("r.jsonl", "r-rank3.jsonl")))
    assert len(read_recording(path).requests) == 4, "of a further engine, too"


def test_files_of_further_engines_are_read_too(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.jsonl", make_line(400, 5, 5, [3]))
    write_recording(tmp_path / "r-rank2.jsonl.1", make_line(200, 5, 5, [2], lost=4))
    # What is there now is of a later start; and a name that only begins like an engine's.
    for name in ("r-rank2.jsonl", "r-rank1x.jsonl"):
        write_recording(tmp_path / name, make_line(0, 5, 5, [1]), header={**HEADER, "id": "another start"})
    recording = read_recording(path)
    assert [line.hash_ids for line in recording.requests] == [[2], [3]]
    assert (recording.lost, recording.broken) == (4, ())
    (tmp_path / "r-rank1.jsonl").write_text("{\n")
    assert read_recording(path).broken[0].startswith(f"{tmp_path / 'r-rank1.jsonl'}:1: the first line")


def test_the_first_engine_may_have_had_no_request(tmp_path: Path) -> None:
    for rank in (2, 10):
        write_recording(tmp_path / f"r-rank{rank}.jsonl", make_line(rank, 5, 5, [rank]))
    assert [line.hash_ids for line in read_recording(tmp_path / "r.jsonl").requests] == [[2], [10]]
    with pytest.raises(InputError, match=r"q\.jsonl: cannot be read"):
        read_recording(tmp_path / "q.jsonl")


def test_engines_that_began_apart_have_one_clock(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.jsonl", make_line(1000, 5, 5, [1]), make_line(3000, 5, 5, [3]))
    earlier = {**HEADER, "started_at": "2026-11-23T12:59:58.750000+01:00"}
    write_recording(tmp_path / "r-rank1.jsonl", make_line(3000, 5, 5, [2]), header=earlier)
    recording = read_recording(path)
    assert [(line.timestamp, line.hash_ids) for line in recording.requests] == [
        (2250, [1]),
        (3000, [2]),
        (4250, [3]),
    ]
    assert recording.header.started_at == earlier["started_at"]
    write_recording(tmp_path / "r-rank1.jsonl", make_line(0, 5, 5, [2]), header={**HEADER, "started_at": "noon"})
    with pytest.raises(InputError, match=r"r-rank1\.jsonl:1: recording\.started_at: is 'noon'; engines are put"):
        read_recording(path)


def test_a_session_that_moved_is_one_job(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.jsonl", make_line(0, 20, 5, [1, 2], session="s"))
    write_recording(tmp_path / "r-rank1.jsonl", make_line(1000, 30, 5, [1, 2, 3], session="s"))
    assert [len(job.turns) for job in load_sessions(path, jobs=None, max_context=None, max_gap_s=None).jobs] == [2]


def test_a_session_becomes_one_job_with_its_waits(tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "r.jsonl",
        make_line(1000, 25, 10, [1, 2, 3], session="s", end="calls", called=["look", "ask"]),
        make_line(2100, 40, 5, [1, 2, 3, 4], session="s"),
        make_line(62200, 50, 5, [1, 2, 3, 4, 5], session="s"),
    )
    (job,) = load_sessions(path, jobs=None, max_context=None, max_gap_s=30.0).jobs
    assert job.arrival_s == 0
    assert [call.name for call in job.turns[0].tool_calls] == ["look", "ask"]
    assert [result.duration_s for result in job.turns[0].results] == [1.0, 1.0]
    assert [turn.pause_s for turn in job.turns] == [0, 30.0, 0]


def test_a_rest_becomes_the_block_that_goes_on_with_it(tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "r.jsonl",
        make_line(0, 12, 3, [1, 99], session="s"),
        make_line(1000, 22, 3, [1, 2, 98], session="s"),
        make_line(2000, 33, 3, [1, 7, 8, 97], session="s"),
    )
    (job,) = load_sessions(path, jobs=None, max_context=None, max_gap_s=None).jobs
    blocks = [turn.context.blocks for turn in job.turns if turn.context is not None]
    assert blocks == [(1, 2), (1, 2, 98), (1, 7, 8, 97)]


def test_requests_side_by_side_are_jobs_of_their_own(tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "r.jsonl",
        make_line(0, 20, 5, [1, 2], session="s"),
        make_line(50, 20, 5, [1, 3], session="s"),
        make_line(1000, 30, 5, [1, 3, 4], session="s"),
        make_line(1001, 30, 5, [1, 2, 5], session="s"),
    )
    jobs = load_sessions(path, jobs=None, max_context=None, max_gap_s=None).jobs
    contexts = [[turn.context.blocks for turn in job.turns if turn.context is not None] for job in jobs]
    assert contexts == [[(1, 2), (1, 2, 5)], [(1, 3), (1, 3, 4)]]


def test_nameless_requests_are_found_by_their_blocks(tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "r.jsonl",
        make_line(0, 20, 10, [1, 2, 3]),
        make_line(10, 20, 10, [1, 5, 6]),
        make_line(1000, 40, 10, [1, 2, 3, 4, 9]),
    )
    assert [len(job.turns) for job in load_sessions(path, jobs=None, max_context=None, max_gap_s=None).jobs] == [2, 1]


def test_a_thread_ends_before_what_is_too_large(tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "r.jsonl",
        make_line(0, 20, 10, [1, 2, 3], session="s"),
        make_line(1000, 40, 0, [1, 2, 3, 4]),
        make_line(2000, 40, 10, [1, 2, 3, 4, 5], session="s"),
    )
    loaded = load_sessions(path, jobs=None, max_context=45, max_gap_s=None)
    assert [len(job.turns) for job in loaded.jobs] == [1]
    assert "Requests that ended without a reply are left out: 1." in loaded.notes
    assert "Requests left out because their session had grown beyond 45 tokens: 1." in loaded.notes


_REQUESTS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(1, 60), st.integers(0, 30), st.sampled_from([None, "a", "b"])),
    min_size=1,
    max_size=30,
)


@given(_REQUESTS)
def test_every_request_with_a_reply_is_in_one_job(requests: list[tuple[int, int, int, str | None]]) -> None:
    lines = [
        make_line(
            time, prompt, reply, list(range(max(-(-prompt // BLOCK), (prompt + reply) // BLOCK))), session=session
        )
        for time, prompt, reply, session in sorted(requests, key=lambda each: each[0])
    ]
    with tempfile.TemporaryDirectory() as folder:
        recording = read_recording(write_recording(Path(folder) / "r.jsonl", *lines))
    jobs = build_jobs(recording, recording.requests).jobs
    contexts = [turn.context for job in jobs for turn in job.turns]
    assert sorted((each.tokens, each.reply_tokens) for each in contexts if each) == sorted(
        (prompt, reply) for _, prompt, reply, _ in requests if reply
    )
    assert all(turn.pause_s >= 0 for job in jobs for turn in job.turns)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)


_LATER = st.integers(0, 10**7)


@given(_REQUESTS, st.lists(st.integers(0, 3), min_size=30, max_size=30), st.lists(_LATER, min_size=4, max_size=4))
def test_lines_over_engines_are_the_same_jobs(
    requests: list[tuple[int, int, int, str | None]], ranks: list[int], later_ms: list[int]
) -> None:
    """Each engine began some time later than the first one could have, and tells its times from there."""
    lines = [
        make_line(
            time + max(later_ms),
            prompt,
            reply,
            list(range(max(-(-prompt // BLOCK), (prompt + reply) // BLOCK))),
            session=session,
        )
        for time, prompt, reply, session in sorted({each[0]: each for each in requests}.values())
    ]
    # The first engine has the first request, or there is no FILE.
    ranks[0] = 0
    began = datetime.fromisoformat(HEADER["started_at"])
    with tempfile.TemporaryDirectory() as folder:
        whole = read_recording(write_recording(Path(folder) / "whole.jsonl", *lines))
        path = Path(folder) / "r.jsonl"
        for rank in {*ranks[: len(lines)]}:
            start = (began + timedelta(milliseconds=later_ms[rank])).isoformat()
            own = [
                {**line, "timestamp": line["timestamp"] - later_ms[rank]}
                for line, at in zip(lines, ranks, strict=False)
                if at == rank
            ]
            write_recording(name_file(path, rank), *own, header={**HEADER, "started_at": start})
        split = read_recording(path)
    assert build_jobs(split, split.requests) == build_jobs(whole, whole.requests)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(json.dumps({"recording": HEADER, **make_line(0, 5, 5, [1])}).encode() + b"\n" + text)
        file.flush()
        assert read_recording(Path(file.name)).requests[0].input_length == 5


def test_aiperf_finds_a_mooncake_request_in_a_line() -> None:
    """Of AIPerf 0.13's `MooncakeTrace`: one of four kinds of input, and fields that change what it sends."""
    needed = {"timestamp": 7.5, "input_length": 600, "output_length": 9, "hash_ids": [4, 5]}
    line = Line(**needed, latency_ms=3.0, end="answer", session="s", called=["look"], reply_ids=[])
    written = json.loads(line.model_dump_json(exclude_defaults=True))
    assert {name: written[name] for name in needed} == needed
    others = {"type", "text_input", "messages", "tools", "payload", "delay", "session_id", "extra"}
    assert not others & {*Line.model_fields}, "it would take these for its own"
