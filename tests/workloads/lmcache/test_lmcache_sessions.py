from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from workloads.lmcache.sessions import load_sessions


def request(second=0, prompt="one two", reply="yes", session="s"):
    return {"timestamp": round(second * 1e6), "input": prompt, "output": reply, "session_id": session}


def write(path, *lines):
    path.parent.mkdir(exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


def load(path, *, jobs=None, max_gap_s=60.0, seed=0):
    return load_sessions(
        path,
        jobs=jobs,
        arrivals=lambda count: [float(number) for number in range(count)],
        max_gap_s=max_gap_s,
        encode=lambda text: [hash(word) for word in text.split()],
        seed=seed,
    )


def test_a_session_is_a_job_in_the_order_of_time(tmp_path):
    path = write(tmp_path / "a.jsonl", request(5, "one two three", ""), request(2, reply="yes it is"))
    [job] = load(path).jobs
    first, second = job.turns
    assert (job.id, job.arrival_s, first.context.reply_tokens, second.context.reply_tokens) == ("s", 0.0, 3, 1)
    assert second.context.blocks[:2] == first.context.blocks
    assert (second.context.tokens, second.context.block_tokens) == (3, 1)
    assert [result.duration_s for turn in job.turns for result in turn.results] == [pytest.approx(3.0)]


@given(
    seconds=st.lists(st.integers(0, 1000), min_size=1, max_size=12),
    names=st.lists(st.sampled_from("ab"), min_size=12, max_size=12),
)
def test_sessions_of_one_file_are_told_apart(tmp_path_factory, seconds, names):
    lines = [request(second, session=name) for second, name in zip(seconds, names, strict=False)]
    jobs = load(write(tmp_path_factory.mktemp("lmcache") / "a.jsonl", *lines), max_gap_s=1e9).jobs
    assert {job.id: len(job.turns) for job in jobs} == Counter(line["session_id"] for line in lines)
    for job in jobs:
        own = [second for second, name in zip(seconds, names, strict=False) if name == job.id]
        waits = [result.duration_s for turn in job.turns for result in turn.results]
        assert sum(waits) == pytest.approx(max(own) - min(own))


def test_a_folder_gives_the_sessions_of_all_its_files(tmp_path):
    for name in "abc":
        write(tmp_path / name / "x.jsonl", request(session=name))
    assert sorted(job.id for job in load(tmp_path).jobs) == ["a", "b", "c"]
    with pytest.raises(InputError, match=r"--jobs 4: .* has 3 recordings"):
        load(tmp_path, jobs=4)


def test_long_waits_are_cut_and_counted(tmp_path):
    loaded = load(write(tmp_path / "a.jsonl", request(0), request(99), request(100)), max_gap_s=60.0)
    assert [result.duration_s for turn in loaded.jobs[0].turns for result in turn.results] == [60.0, 1.0]
    assert "1 are longer than 60 s" in loaded.notes[0]


def test_requests_without_text_are_left_out_and_counted(tmp_path):
    loaded = load(write(tmp_path / "a.jsonl", request(0), request(1, ""), request(3)))
    assert [result.duration_s for turn in loaded.jobs[0].turns for result in turn.results] == [3.0]
    assert loaded.notes[1] == "1 requests without text are left out."


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Invalid JSON"),
        ({**request(), "timestamp": "9"}, "timestamp: .*valid integer"),
        ({**request(), "timestamp": -1}, "timestamp: .*greater than or equal to 0"),
        ({**request(), "session_id": ""}, "session_id: .*at least 1 character"),
        ({"timestamp": 1, "output": "", "session_id": "s"}, "input: Field required"),
        ({**request(), "model": "x"}, "model: Extra inputs"),
    ],
)
def test_a_bad_line_is_named_by_number_and_field(tmp_path, line, problem):
    with pytest.raises(InputError, match=rf"a\.jsonl:2: {problem}") as caught:
        load(write(tmp_path / "a.jsonl", request(), line))
    assert "\n" not in str(caught.value)


def test_empty_missing_and_packed_files_are_refused(tmp_path):
    for path, problem in (
        (tmp_path / "gone.jsonl", "cannot be read"),
        (tmp_path / "a.tar.zst", "unpack it first"),
        (tmp_path, r"holds no \*\.jsonl"),
    ):
        with pytest.raises(InputError, match=problem):
            load(path)
    for lines in ([""], [request(prompt="")]):
        with pytest.raises(InputError, match="holds no entries"):
            load(write(tmp_path / "a.jsonl", *lines))
    with pytest.raises(InputError, match="--max-gap -1: give seconds"):
        load(tmp_path / "a.jsonl", max_gap_s=-1.0)
