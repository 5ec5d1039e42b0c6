"""Jobs as a collector gets them, over the wire: a trace a job, and names only where they may go out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from held_ports import hold_ports
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from otlp_receiver import Receiver, receive_grpc, receive_http
from tracked_requests import ASKED, BASH, Tracked
from vllm.v1.request import RequestStatus

from agentcache import job_spans, outbox
from agentcache.engine.constants import AGENT_ARGUMENT
from agentcache.engine.observe.stats import JobStats
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_session
from agentcache.job_log import JobNames
from agentcache.job_spans import JobSpans, make_exporter
from tool_runtime.agent.job import ToolCall
from workloads.recording.reader import read_recording

SINCE_1970_S = 1_790_000_000.0
LOOK = ToolCall("look", "{}")
TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture(autouse=True)
def _no_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_spans, "_GATHER_S", 0.0)


@dataclass
class Traced:
    """Jobs whose spans go to an exporter."""

    exporter: SpanExporter
    job_log: str | None = None

    def __post_init__(self) -> None:
        self.tracked = Tracked()
        names = JobNames(self.job_log, b"secret")
        self.spans = JobSpans(self.exporter, names, model="tiny", rank=1, since_1970_s=SINCE_1970_S)
        self.tracked.tracker.stats = JobStats(spans=self.spans)

    def turn(self, name: str, prompt: list[int], cached: int = 0, *, after_s: float = 1.0, **more: Any) -> list[int]:
        """A turn comes, waits for 0.25 s, has its first token after 1 s more, and ends after another."""
        status = more.pop("status", RequestStatus.FINISHED_STOPPED)
        headers = more.pop("headers", None)
        clock = self.tracked.clock
        clock.now_s += after_s
        request = self.tracked.ask(name, prompt, **{"session": "my session", **more})
        request.trace_headers = headers
        self.tracked.tracker.note_wait(request, "pins")
        clock.now_s += 0.25
        self.tracked.admit(request, cached)
        clock.now_s += 1.0
        self.tracked.give_tokens(name)
        clock.now_s += 1.0
        return self.tracked.reply(request, status=status)[1]

    def converse(self) -> None:
        """A turn that calls two tools, which take 3 s, and an answer."""
        prompt = self.turn("chatcmpl-1-00000000", ASKED, calls=[BASH, LOOK, LOOK])
        self.turn("chatcmpl-2-00000000", [*prompt, *[9] * 8], 16, after_s=3.0, headers=TRACED)

    def end(self) -> None:
        release(self.tracked.tracker, "my session")
        self.tracked.tracker.close()


@pytest.fixture(params=[("grpc", receive_grpc), ("http/protobuf", receive_http)], ids=["grpc", "http"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    protocol, receive = request.param
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    made: Callable[[], AbstractContextManager[Receiver]] = receive
    with made() as found:
        yield found


def at(span: dict[str, Any]) -> tuple[float, float]:
    """Begin and end on the engine's clock."""
    began, ended = (int(span[name]) / 1e9 - SINCE_1970_S for name in ("startTimeUnixNano", "endTimeUnixNano"))
    return round(began, 3), round(ended, 3)


def test_a_job_is_one_trace_with_its_turns_and_tools(receiver: Receiver) -> None:
    traced = Traced(make_exporter(receiver.url))
    traced.converse()
    traced.end()
    spans = {f"{span['name']} {span['said'].get('agentcache.turn', '')}": span for span in receiver.list_spans()}
    root = spans.pop("invoke_agent ")
    assert set(spans) == {"chat tiny 0", "execute_tool bash 0", "execute_tool look 0", "chat tiny 1"}
    assert {span["traceId"] for span in spans.values()} == {root["traceId"]}
    assert {span["parentSpanId"] for span in spans.values()} == {root["spanId"]}
    assert at(root) == (1001.0, 1008.5)
    assert at(spans["execute_tool bash 0"]) == at(spans["execute_tool look 0"]) == (1003.25, 1006.25)
    second = spans["chat tiny 1"]
    assert at(second) == (1006.25, 1008.5)
    assert [event["name"] for event in second["events"]] == ["admitted", "first token"]
    said = second["said"]
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.cache_read.input_tokens"]) == ("28", "16")
    assert (said["agentcache.wait_s.pins"], said["gen_ai.response.time_to_first_chunk"]) == (0.25, 1.25)
    assert said["gen_ai.response.id"] == "chatcmpl-2"
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert spans["chat tiny 0"]["said"]["gen_ai.response.finish_reasons"] == ["tool_calls"]
    of_job = root["said"]
    assert (of_job["agentcache.turns"], of_job["agentcache.cached_tokens"]) == ("2", "16")
    assert (of_job["agentcache.wait_s.pins"], of_job["agentcache.cause"]) == (0.5, "job over")
    # The client's own trace is named, not joined.
    (link,) = second["links"]
    assert link["traceId"] != second["traceId"]
    assert "links" not in spans["chat tiny 0"]


@pytest.mark.parametrize(("job_log", "is_told"), [(None, False), ("jobs", False), ("named:jobs", True)])
def test_names_go_out_by_the_rule_of_the_job_log(job_log: str | None, *, is_told: bool) -> None:
    with receive_grpc() as receiver:
        traced = Traced(make_exporter(receiver.url), job_log)
        traced.turn("chatcmpl-1-00000000", ASKED, marks={AGENT_ARGUMENT: "my sub-agent"})
        job = view_session(traced.tracked.tracker, "my session")[0].session
        traced.end()
        chat, root = receiver.list_spans()
        names = [chat["said"][f"gen_ai.{name}.id"] for name in ("conversation", "agent")]
        assert root["said"]["gen_ai.conversation.id"] == names[0]
        assert (names == ["my session", "my sub-agent"]) == is_told
        assert (names[0] == JobNames(None, b"secret").make_id(job)) != is_told
        assert any("my " in str(request) for request in receiver.requests) == is_told


def test_our_own_reader_finds_the_same_turns(tmp_path: Path) -> None:
    with receive_grpc() as receiver:
        traced = Traced(make_exporter(receiver.url))
        traced.converse()
        traced.turn(
            "chatcmpl-3-00000000", [5] * 40, session="other", calls=None, status=RequestStatus.FINISHED_LENGTH_CAPPED
        )
        traced.end()
        recording = read_recording(receiver.write(tmp_path / "spans.jsonl"))
    turns = [turn for job in ("my session", "other") for turn in view_turns(traced, job)]
    assert [(line.input_length, line.output_length) for line in recording.requests] == [
        (turn.prompt_tokens, turn.output_tokens) for turn in turns
    ]
    assert [(line.called, line.end) for line in recording.requests] == [
        (["bash", "look"], "calls"),
        ([], "answer"),
        ([], "length"),
    ]
    assert [(line.timestamp, line.latency_ms) for line in recording.requests] == pytest.approx(
        [(1000 * (turn.arrived_s - turns[0].arrived_s), 1000 * (turn.finished_s - turn.arrived_s)) for turn in turns]
    )
    first, second, third = (line.session for line in recording.requests)
    assert first == second != third
    assert recording.broken == ()


def view_turns(traced: Traced, session: str) -> Any:
    return view_session(traced.tracked.tracker, session, with_ended=True)[0].turns


def test_hostile_names_are_cut_short_and_encoded() -> None:
    with receive_grpc() as receiver:
        traced = Traced(make_exporter(receiver.url), "named:jobs")
        session, agent = "s\ud800" * 100, "a\n\ud800" * 10_000
        prompt = traced.turn("x" * 200, ASKED, session=session, marks={AGENT_ARGUMENT: agent}, calls=[LOOK])
        traced.turn("y" * 200, [*prompt, 9], session=session, marks={AGENT_ARGUMENT: agent})
        traced.tracked.tracker.close()
        spans = receiver.list_spans()
        assert len(spans) == 4
        assert max(len(value) for span in spans for value in span["said"].values() if isinstance(value, str)) == 256
        assert traced.spans.lost == 0


class DownExporter(SpanExporter):
    """A collector that is down, or hangs until `goes_on`."""

    def __init__(self, goes_on: Event | None = None) -> None:
        self.goes_on = goes_on
        self.began = Event()

    def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002
        self.began.set()
        if self.goes_on is not None:
            self.goes_on.wait(60)
        return SpanExportResult.FAILURE


def test_a_collector_that_is_down_loses_spans_and_is_told_once(vllm_log: pytest.LogCaptureFixture) -> None:
    traced = Traced(DownExporter())
    for _ in range(3):
        traced.converse()
    traced.end()
    assert traced.spans.lost == 3 * 4 + 1
    assert vllm_log.text.count("agentcache:spans_lost_total") == 1


def test_a_collector_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_MOST_WAITING", 3)
    monkeypatch.setattr(outbox, "_LAST_S", 0.01)
    exporter = DownExporter(Event())
    traced = Traced(exporter)
    traced.turn("chatcmpl-0-00000000", ASKED)
    assert exporter.began.wait(60)
    for number in range(1, 9):
        traced.turn(f"chatcmpl-{number}-00000000", ASKED)
    assert traced.spans.lost == 5
    traced.tracked.tracker.close()
    assert exporter.goes_on is not None
    exporter.goes_on.set()


def test_the_exporter_s_own_log_is_not_filled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    with hold_ports(1) as (port,), caplog.at_level(logging.DEBUG):
        traced = Traced(make_exporter(f"http://127.0.0.1:{port}"))
        traced.converse()
        traced.end()
    assert traced.spans.lost
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
