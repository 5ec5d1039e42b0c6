"""What a recording says of how a reply ended."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.constants import AGENT_ARGUMENT, CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.marks import write_forced_calls
from agentcache.engine.observe.recorder import RequestRecorder
from workloads.recording.line_maker import RecordedRequest
from workloads.recording.writer import FindCalls

STOPPED, FULL, GONE = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_ABORTED,
)
RECORDED = {REPLY_ARGUMENT: [7, 8], CALLS_ARGUMENT: write_forced_calls([])}


class Written:
    """In the place of the thread that writes."""

    def __init__(self) -> None:
        self.requests: list[tuple[RecordedRequest, FindCalls | None]] = []

    def write(self, request: RecordedRequest, find_calls: FindCalls | None) -> None:
        self.requests.append((request, find_calls))


@pytest.mark.parametrize(
    ("status", "asked", "end", "may_call"),
    [
        (STOPPED, {}, "answer", True),
        (STOPPED, {"ignore_eos": True}, "answer", True),
        (FULL, {}, "length", False),
        (FULL, {"ignore_eos": True}, "length", True),
        (FULL, {"ignore_eos": True, "extra_args": RECORDED}, "answer", True),
        (GONE, {"ignore_eos": True}, "aborted", False),
    ],
    ids=["stopped", "stop string", "cut off", "as long as asked", "simulated", "gone"],
)
def test_ends_of_replies(status: RequestStatus, asked: dict[str, Any], end: str, may_call: bool) -> None:
    ended, find_calls = _record(SamplingParams(max_tokens=2, **asked), status)
    assert (ended.end, find_calls is not None) == (end, may_call)


@pytest.mark.parametrize("marks", [{}, {AGENT_ARGUMENT: "sub"}], ids=["main", "sub-agent"])
def test_the_agent_that_asked_is_recorded(marks: dict[str, str]) -> None:
    ended, _ = _record(SamplingParams(max_tokens=2, extra_args=marks), STOPPED)
    assert ended.thread == marks.get(AGENT_ARGUMENT)


def _record(params: SamplingParams, status: RequestStatus) -> tuple[RecordedRequest, FindCalls | None]:
    written: Any = Written()
    recorder = RequestRecorder(
        written, hashes_per_block=1, tool_reader=None, reads_later=False, states={}, clock=lambda: 1.0
    )
    request = Request("a", [1, 2, 3], params, None)
    recorder.arrived(request)
    request.append_output_token_ids([7, 8])
    request.status = status
    recorder.ended(request)
    ((ended, find_calls),) = written.requests
    return ended, find_calls
