from __future__ import annotations

import pytest
from converters.agent_timeline import measure_agents, order_steps
from converters.agent_trace_file import Trace
from made_agent_trace import make_request, make_sub_agent, make_trace


def _measure(*requests):
    trace = Trace.model_validate(make_trace(requests))
    return measure_agents(trace, order_steps(trace))


def test_think_time_is_the_wait_before_its_own_request():
    [main] = _measure(make_request(0, [1], think_time=99.0), make_request(8, [1], think_time=4.0))
    assert [(wait.seconds, wait.by_tool) for wait in main.waits] == [(4.0, True)]


@pytest.mark.parametrize(
    ("stop", "input_types", "by_tool"),
    [
        ("tool_use", ["text"], True),
        ("", ["text"], True),
        ("end_turn", ["text"], False),
        ("end_turn", ["text", "tool_result"], False),
        ("end_turn", ["tool_result"], True),
    ],
)
def test_what_is_waited_for(stop, input_types, by_tool):
    [main] = _measure(make_request(0, [1], stop=stop), make_request(5, [1], input_types=input_types))
    assert [wait.by_tool for wait in main.waits] == [by_tool]


def test_a_think_time_after_an_unknown_reply_is_not_believed():
    """It is recorded from the last known reply on: here 1 + 59 s, of which the second reply's wait is a part."""
    unknown = make_request(20, [1], out=30, api_time=None)
    [main] = _measure(
        make_request(0, [1], out=10, api_time=1.0), unknown, make_request(60, [1], out=50, think_time=59.0)
    )
    last = main.waits[-1]
    # Replies of 10 and 50 tokens took 1 s each, so one of 30 does.
    assert last.seconds == pytest.approx(60 - 20 - 1)


def test_unknown_reply_times_lie_on_a_line_through_the_known():
    [main] = _measure(
        make_request(0, [1], out=10, api_time=2.0),
        make_request(10, [1], out=30, api_time=4.0),
        make_request(20, [1], out=80, api_time=None),
        make_request(40, [1], out=10, api_time=2.0),
    )
    assert main.waits[2].seconds == pytest.approx(20 - 9)


def test_without_any_known_reply_the_whole_interval_is_the_wait():
    [main] = _measure(make_request(0, [1], api_time=None), make_request(7, [1], api_time=None))
    assert main.waits[0].seconds == 7


def test_a_wait_is_never_below_zero():
    [main] = _measure(make_request(0, [1], api_time=9.0), make_request(7, [1], think_time=None))
    assert main.waits[0].seconds == 0


def test_a_sub_agent_runs_while_its_parent_waits():
    """It ended at 50 s after 48 s, so it started at 2 s, when the parent's first reply was there."""
    inner = [make_request(0, [7], api_time=3.0, think_time=0.0), make_request(10, [7, 8], think_time=7.0)]
    main, child = _measure(
        make_request(0, [1], api_time=1.0),
        make_sub_agent(50, inner, duration_ms=48_000),
        make_request(55, [1, 2], think_time=54.0),
    )
    assert [step.start_s for step in child.steps] == [2, 12]
    assert (child.behind, child.delay_s, child.is_awaited) == (0, 1.0, True)
    assert [wait.seconds for wait in child.waits] == [7.0]
    # Its last reply was there at 13 s.
    assert [wait.seconds for wait in main.waits] == [55 - 13]


def test_sub_agents_run_beside_each_other_and_detached_ones_too():
    first = make_sub_agent(30, [make_request(0, [7]), make_request(8, [7])], duration_ms=28_000)
    second = make_sub_agent(30, [make_request(0, [9]), make_request(5, [9])], duration_ms=27_000)
    unwaited = make_sub_agent(50, [make_request(1, [11])], duration_ms=None)
    main, *children = _measure(
        make_request(0, [1]), first, second, make_request(40, [1]), unwaited, make_request(60, [1])
    )
    assert [[step.start_s for step in child.steps] for child in children] == [[2, 10], [3, 8], [51]]
    assert [(child.behind, child.delay_s, child.is_awaited) for child in children] == [
        (0, 1.0, True),
        (0, 2.0, True),
        (1, 10.0, False),
    ]
    # The latest of both replied at 11 s; behind the second request only its think time counts.
    assert [wait.seconds for wait in main.waits] == [2.0, 2.0]


def test_a_sub_agent_before_any_reply_began_behind_none():
    main, child = _measure(make_request(3, [1]), make_sub_agent(2, [make_request(1, [7])], duration_ms=1_000))
    assert (child.behind, child.delay_s, child.is_awaited) == (-1, 1.0, False)
    assert [step.start_s for step in main.steps] == [3]
