from __future__ import annotations

import json
from collections import Counter

import pytest
from converters.left_out import LeftOut
from converters.lmcache import convert
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from workloads.recording.sessions import load_sessions


def request(second=0, prompt="one two", reply="yes", session="s"):
    return {"timestamp": round(second * 1e6), "input": prompt, "output": reply, "session_id": session}


def write(path, *lines):
    path.parent.mkdir(exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


def load(path, *, jobs=None, max_gap_s=60.0, seed=0):
    """The jobs that replays make of the recording, by the session's name."""
    out = path.parent / "recording"
    convert(
        path,
        out,
        jobs=jobs,
        arrivals=lambda count: [float(number) for number in range(count)],
        max_gap_s=max_gap_s,
        encode=lambda text: [hash(word) for word in text.split()],
        seed=seed,
        left_out=LeftOut(),
    )
    made = load_sessions(out, jobs=None, max_context=None, max_gap_s=None).jobs
    return {job.id.partition("-")[2]: job for job in made}


def list_waits(job):
    return [result.duration_s for turn in job.turns for result in turn.results]


def test_a_session_is_a_job_in_the_order_of_time(tmp_path):
    more = " ".join(map(str, range(15)))
    path = write(tmp_path / "a.jsonl", request(5, f"one two {more}", ""), request(2, reply="yes it is"))
    job = load(path)["s"]
    first, second = (turn.context for turn in job.turns)
    assert (job.arrival_s, first.tokens, second.tokens) == (0.0, 2, 17)
    assert (first.reply_tokens, second.reply_tokens) == (3, 1)
    assert second.blocks[:1] == first.blocks
    assert list_waits(job) == [pytest.approx(3.0)]


def test_prompts_share_blocks_up_to_their_first_difference(tmp_path):
    words = [str(number) for number in range(48)]
    other = [*words[:40], "else", *words[41:]]
    path = write(tmp_path / "a.jsonl", request(0, " ".join(words)), request(1, " ".join(other), session="t"))
    jobs = load(path)
    one, two = (jobs[name].turns[0].context.blocks for name in "st")
    assert one[:2] == two[:2]
    assert one[2] != two[2]


@given(
    seconds=st.lists(st.integers(0, 1000), min_size=1, max_size=12),
    names=st.lists(st.sampled_from("ab"), min_size=12, max_size=12),
)
def test_sessions_of_one_file_are_told_apart(tmp_path_factory, seconds, names):
    lines = [request(second, session=name) for second, name in zip(seconds, names, strict=False)]
    jobs = load(write(tmp_path_factory.mktemp("lmcache") / "a.jsonl", *lines), max_gap_s=1e9)
    assert {name: len(job.turns) for name, job in jobs.items()} == Counter(line["session_id"] for line in lines)
    for name, job in jobs.items():
        own = [second for second, named in zip(seconds, names, strict=False) if named == name]
        assert sum(list_waits(job)) == pytest.approx(max(own) - min(own))


def test_a_folder_gives_the_sessions_of_all_its_files(tmp_path):
    for name in "abc":
        write(tmp_path / "in" / f"{name}.jsonl", request(session=name))
    assert sorted(load(tmp_path / "in")) == ["a", "b", "c"]
    with pytest.raises(InputError, match=r"--jobs 4: .* has 3 recordings"):
        load(tmp_path / "in", jobs=4)


def test_long_waits_are_cut(tmp_path):
    job = load(write(tmp_path / "a.jsonl", request(0), request(99), request(100)), max_gap_s=60.0)["s"]
    assert list_waits(job) == [60.0, 1.0]


def test_requests_without_text_are_left_out(tmp_path):
    job = load(write(tmp_path / "a.jsonl", request(0), request(1, ""), request(3)))["s"]
    assert list_waits(job) == [3.0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Invalid JSON"),
        ({**request(), "timestamp": "9"}, "timestamp: .*valid integer"),
        ({**request(), "timestamp": -1}, "timestamp: .*greater than or equal to 0"),
        ({**request(), "timestamp": 10**400}, "timestamp: "),
        ({**request(), "session_id": ""}, "session_id: .*at least 1 character"),
        ({"timestamp": 1, "output": "", "session_id": "s"}, "input: Field required"),
    ],
)
def test_a_bad_line_is_named_by_number_and_field(tmp_path, line, problem):
    with pytest.raises(InputError, match=rf"a\.jsonl:2: {problem}") as caught:
        load(write(tmp_path / "a.jsonl", request(), line))
    assert "\n" not in str(caught.value)


def test_empty_missing_and_packed_files_are_refused(tmp_path):
    (tmp_path / "a.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd")
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
