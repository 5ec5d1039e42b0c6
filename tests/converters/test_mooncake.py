from __future__ import annotations

import json

import pytest
from converters.left_out import LeftOut
from converters.mooncake import convert
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from workloads.recording.sessions import load_sessions


def _line(timestamp=0, tokens=600, blocks=(1, 2), output=7):
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": list(blocks)}


def _convert(folder, lines, *, jobs=None, rate=None, max_context=None):
    """The jobs that replays make of the recording."""
    path = folder / "trace.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    convert(path, folder / "recording.jsonl", jobs=jobs, rate=rate, max_context=max_context, left_out=LeftOut())
    return load_sessions(folder / "recording.jsonl", jobs=None, max_context=None, max_gap_s=None).jobs


def test_every_request_is_a_job_of_one_turn(tmp_path):
    jobs = _convert(tmp_path, [_line(2000), "", _line(3500, tokens=1024, output=0)])
    assert [(job.id, job.arrival_s, len(job.turns)) for job in jobs] == [
        ("0-request-1", 0.0, 1),
        ("1-request-3", 1.5, 1),
    ]
    context = jobs[0].turns[0].context
    assert (context.blocks, context.block_tokens, context.tokens, context.reply_tokens) == ((1, 2), 512, 600, 7)
    assert jobs[1].turns[0].context.reply_tokens == 1


@given(
    gaps_ms=st.lists(st.integers(0, 10**6), min_size=2, max_size=20).filter(any),
    rate=st.floats(0.01, 100),
)
def test_a_rate_scales_all_gaps_alike(tmp_path_factory, gaps_ms, rate):
    times = [sum(gaps_ms[:n]) for n in range(len(gaps_ms) + 1)]
    arrivals = [job.arrival_s for job in _convert(tmp_path_factory.mktemp("trace"), map(_line, times), rate=rate)]
    assert arrivals[0] == 0
    assert arrivals[-1] == pytest.approx(len(gaps_ms) / rate)
    assert arrivals == pytest.approx([time_ms * arrivals[-1] / times[-1] for time_ms in times])


def test_requests_above_the_limit_are_left_out(tmp_path):
    lines = [_line(tokens=600, output=7), _line(500, tokens=600, output=8), _line(1000)]
    assert [job.id for job in _convert(tmp_path, lines, jobs=2, max_context=607)] == ["0-request-1", "1-request-3"]
    with pytest.raises(InputError, match=r"--jobs 3: .* gives 2"):
        _convert(tmp_path, lines, jobs=3, max_context=607)
    with pytest.raises(InputError, match="no job is within --max-context"):
        _convert(tmp_path, lines, max_context=10)


def test_lines_behind_the_wanted_are_not_read(tmp_path):
    assert len(_convert(tmp_path, [_line(), "broken"], jobs=1)) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ({**_line(9), "input_length": -1}, "input_length: .*greater than or equal to 0"),
        ({**_line(9), "output_length": 1.5}, "output_length: .*valid integer"),
        ({**_line(9), "timestamp": "9"}, "timestamp: .*valid number"),
        ({**_line(9), "output_length": 2**62}, "output_length: "),
        ({**_line(9), "timestamp": 1e308}, "timestamp: "),
        ({**_line(9), "hash_ids": [2**64, 1]}, r"hash_ids\[0\]: "),
        ({"timestamp": 9}, "input_length: Field required"),
        (_line(9, blocks=[1]), "hash_ids: 1 blocks of 512 tokens for an input_length of 600; it needs 2"),
        (_line(9, blocks=[1, 2, 3]), "hash_ids: 3 blocks"),
        (_line(9, blocks=[]), "hash_ids: .*at least 1 item"),
        (_line(4), "timestamp: 4 is before"),
    ],
)
def test_a_bad_line_is_named_by_number_and_field(tmp_path, line, problem):
    with pytest.raises(InputError, match=rf"trace\.jsonl:2: {problem}") as caught:
        _convert(tmp_path, [_line(5), line])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("options", "flag"), [({"jobs": 0}, "--jobs 0"), ({"rate": 0.0}, "--rate 0")])
def test_bad_options_are_refused_by_their_flag(tmp_path, options, flag):
    with pytest.raises(InputError, match=flag):
        _convert(tmp_path, [_line(0), _line(5)], **options)


def test_gaps_that_are_all_zero_cannot_be_scaled(tmp_path):
    with pytest.raises(InputError, match="--rate 2: all 2 requests have one timestamp"):
        _convert(tmp_path, [_line(5), _line(5)], rate=2.0)


def test_empty_missing_and_packed_files_are_refused(tmp_path):
    (tmp_path / "packed.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(InputError, match="holds no entries"):
        _convert(tmp_path, [""])
    for name, problem in (("gone.jsonl", "cannot be read"), ("packed.jsonl.zst", "unpack it first")):
        with pytest.raises(InputError, match=problem):
            convert(tmp_path / name, tmp_path / "out.jsonl", jobs=None, rate=None, max_context=None, left_out=LeftOut())
