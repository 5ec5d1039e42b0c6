from __future__ import annotations

from itertools import pairwise

import pytest
from converters.agent_traces import BlockScale, convert
from converters.left_out import LeftOut
from hypothesis import given
from hypothesis import strategies as st
from made_agent_trace import BLOCK, make_request, make_sub_agent, make_trace, write_traces

from agentcache.errors import InputError
from tool_runtime.agent.job import Start, ToolCall, ToolResult
from workloads.recording.plays import find_shared_blocks
from workloads.recording.sessions import load_sessions


def _load(path, *, jobs=None, scale=1.0, max_context=None, max_gap_s=60.0):
    """Convert sessions that come every 10 s, and load the jobs of the recording."""

    def arrivals(count):
        return [10.0 * number for number in range(count)]

    out = (path if path.is_dir() else path.parent) / "r.jsonl"
    convert(
        path,
        out,
        jobs=jobs,
        arrivals=arrivals,
        scale=scale,
        max_context=max_context,
        max_gap_s=max_gap_s,
        left_out=LeftOut(),
    )
    return load_sessions(out, jobs=None, max_context=None, max_gap_s=None).jobs


def _grow(requests):
    return make_trace([make_request(5 * n, range(n + 1), tail=n) for n in range(requests)])


def test_a_session_becomes_a_job_of_a_turn_a_request(tmp_path):
    write_traces(
        tmp_path,
        make_trace(
            [
                make_request(0, [1, 2], tail=3, out=40),
                make_request(5, [1, 2, 3], stop="end_turn", think_time=4.0),
                make_request(90, [1, 2, 3, 4], input_types=["text"], think_time=33.0),
            ]
        ),
    )
    [job] = _load(tmp_path)
    assert (job.id, job.messages, job.arrival_s) == ("0-trace_0000", (), 0.0)
    called, answered, last = job.turns
    assert called.tool_calls == (ToolCall("tool", "{}"),)
    assert (called.results, called.pause_s) == ((ToolResult("", 4.0),), 0.0)
    assert (answered.tool_calls, answered.results, answered.pause_s) == ((), (), 33.0)
    assert (last.tool_calls, last.results, last.pause_s) == ((), (), 0.0)
    assert (called.context.tokens, called.context.block_tokens, called.context.reply_tokens) == (131, 64, 40)
    assert answered.context.blocks == called.context.blocks
    assert last.context.blocks[:3] == answered.context.blocks


def test_waits_are_cut(tmp_path):
    requests = [make_request(0, [1]), make_request(9, [1], stop="end_turn", think_time=70.0)]
    requests.append(make_request(200, [1], input_types=["text"], think_time=80.0))
    [job] = _load(write_traces(tmp_path, make_trace(requests)), max_gap_s=30.0)
    first, second, _ = job.turns
    assert (first.results[0].duration_s, second.pause_s) == (30.0, 30.0)


def test_sub_agents_keep_their_own_contexts(tmp_path):
    sub_agent = make_sub_agent(20, [make_request(0, [7]), make_request(5, [7, 8])], duration_ms=18_000)
    trace = make_trace([make_request(0, [1], tail=9), sub_agent, make_request(30, [1, 2])])
    [job] = _load(write_traces(tmp_path, trace))
    [child] = job.agents
    assert (child.thread, child.start) == ("agent-1-1", Start(None, 0, 1.0, is_awaited=True))
    parent, parent_after = (turn.context.blocks for turn in job.turns)
    inner, inner_after = (turn.context.blocks for turn in child.turns)
    assert parent_after == parent
    assert inner_after[:1] == inner
    assert not {*inner_after} & {*parent_after}


def test_a_limit_ends_sessions_and_skips_those_that_begin_above(tmp_path):
    long = make_trace([make_request(0, range(90))])
    write_traces(tmp_path, _grow(5), long, _grow(2))
    # The third request has 3 blocks and 2 tokens, its reply 10.
    jobs = _load(tmp_path, jobs=2, max_context=3 * BLOCK + 11)
    assert [(job.id, len(job.turns), job.arrival_s) for job in jobs] == [
        ("0-trace_0000", 2, 0.0),
        ("1-trace_0002", 2, 10.0),
    ]
    assert len(_load(tmp_path, jobs=1, max_context=3 * BLOCK + 12)[0].turns) == 3
    with pytest.raises(InputError, match=r"--jobs 3: .* gives 2 with these options"):
        _load(tmp_path, jobs=3, max_context=3 * BLOCK + 11)
    with pytest.raises(InputError, match="raise it or lower --scale"):
        _load(tmp_path, max_context=BLOCK)


def test_no_more_files_are_read_than_needed(tmp_path):
    write_traces(tmp_path, _grow(2), _grow(2))
    (tmp_path / "trace_0002.json").write_text("not a trace", encoding="utf-8")
    assert len(_load(tmp_path, jobs=2)) == 2
    with pytest.raises(InputError, match=r"trace_0002\.json"):
        _load(tmp_path)


def test_the_first_jobs_are_the_same_for_every_count(tmp_path):
    write_traces(tmp_path, _grow(3), _grow(2), _grow(4))
    assert _load(tmp_path, jobs=2) == _load(tmp_path)[:2]


def test_one_file_is_one_session(tmp_path):
    write_traces(tmp_path, _grow(3), _grow(2))
    assert [job.id for job in _load(tmp_path / "trace_0001.json")] == ["0-trace_0001"]


def test_scaling_keeps_the_blocks(tmp_path):
    write_traces(tmp_path, _grow(6))
    whole, small = (_load(tmp_path, scale=scale)[0].turns for scale in (1.0, 0.125))
    assert [turn.context.blocks for turn in small] == [turn.context.blocks for turn in whole]
    assert {turn.context.block_tokens for turn in small} == {8}
    assert {turn.context.reply_tokens for turn in small} == {1}


@given(tokens=st.integers(0, 10**6), block=st.integers(1, 600), scale=st.floats(0.001, 4))
def test_scaled_tokens_need_as_many_blocks_as_the_recorded(tokens, block, scale):
    size = BlockScale.of(block, scale)
    scaled = size.prompt_tokens(tokens)
    assert size.block_tokens >= 1
    assert -(-scaled // size.block_tokens) == max(1, -(-tokens // block))
    assert size.reply_tokens(tokens) >= 1


def test_empty_prompts_and_replies_have_one_token(tmp_path):
    [job] = _load(write_traces(tmp_path, make_trace([make_request(0, [], out=0)])))
    context = job.turns[0].context
    assert (len(context.blocks), context.tokens, context.reply_tokens) == (1, 1, 1)


@given(shared=st.lists(st.integers(0, 7), min_size=2, max_size=6))
def test_consecutive_turns_share_what_their_block_ids_share(tmp_path_factory, shared):
    prompts, unused = [list(range(8))], 100
    for keep in shared:
        prompts.append([*prompts[-1][:keep], *range(unused, unused + 8 - keep)])
        unused += 8
    trace = make_trace([make_request(5 * n, blocks) for n, blocks in enumerate(prompts)])
    [job] = _load(write_traces(tmp_path_factory.mktemp("traces"), trace))
    for keep, (before, after) in zip(shared, pairwise(turn.context.blocks for turn in job.turns), strict=True):
        assert after[:keep] == before[:keep]
        assert not {*after[keep:]} & {*before}


@pytest.mark.parametrize(
    ("options", "flag"),
    [({"jobs": 0}, "--jobs 0"), ({"scale": 0.0}, "--scale 0"), ({"max_gap_s": float("nan")}, "--max-gap nan")],
)
def test_bad_options_are_refused_by_their_flag(tmp_path, options, flag):
    with pytest.raises(InputError, match=flag):
        _load(write_traces(tmp_path, _grow(1)), **options)


def test_blocks_of_two_sizes_are_refused(tmp_path):
    write_traces(tmp_path, _grow(2), {**make_trace([]), "block_size": 32, "requests": [make_request(0, [], tail=5)]})
    with pytest.raises(InputError, match=r"block_size: \[32, 64\] tokens after scaling; a recording has one size"):
        _load(tmp_path)


def test_heads_of_equal_length_are_blocks_that_sessions_share(tmp_path):
    session = make_trace([make_request(0, [1, 2, 3])], tool_tokens=64, system_tokens=64)
    jobs = _load(write_traces(tmp_path, session, session))
    first, second = ({*job.turns[0].context.blocks} for job in jobs)
    assert first & second == find_shared_blocks(jobs)
    assert len(first & second) == 2
