"""Tells an OpenTelemetry collector of jobs: a trace a job, with a span a turn and a span a tool that the job waits for.

Spans are made and sent in a thread. docs/traces.md lists what they say.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentcache.engine.job_summary import JobSummary
from agentcache.engine.views import TurnView
from agentcache.job_log import JobNames
from agentcache.outbox import Outbox

_THREAD = "agentcache-spans"
_MOST_SENT = 512
_GATHER_S = 1.0
# Of a text, in characters: clients make up names.
_LONGEST = 256
_REASONS = {"finished": "stop", "cut off": "length", "aborted": "abort", "failed": "error"}
# Fields of a job's record that its span has.
_OF_JOB = (
    *("cause", "requests", "turns", "tool_calls", "prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens"),
    *("ttft_mean_s", "ttft_max_s", "gpu_s"),
)


@dataclass(slots=True, eq=False)
class JobTrace:
    """A job by its name in the table, and the session that its client names. `root` is there from its first span on."""

    job: str
    began_s: float
    session: str | None = None
    root: Span | None = None


class JobSpans(Outbox[Callable[[], None]]):
    """The spans of one engine's jobs. `lost` ones did not arrive. Times are seconds on the engine's clock."""

    def __init__(self, exporter: SpanExporter, names: JobNames, *, model: str, rank: int, since_1970_s: float) -> None:
        """Begin. The engine's clock was at 0 `since_1970_s` after 1970."""
        self._exporter = exporter
        self._names = names
        self._model = model
        self._since_ns = round(since_1970_s * 1e9)
        # The environment's name for the service goes before ours.
        resource = Resource.create({"service.name": "agentcache"}).merge(OTELResourceDetector().detect())
        resource = resource.merge(Resource({"agentcache.engine": rank}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._ended = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._ended))
        self._tracer = provider.get_tracer("agentcache")
        # Of a collector that is down the outbox tells, once.
        for module in {kind.__module__ for kind in type(exporter).__mro__}:
            logging.getLogger(module).addFilter(_is_of_others)
        warning = (
            "Spans are missing at the collector (--otlp-traces-endpoint), and agentcache:spans_lost_total counts more"
        )
        super().__init__(_THREAD, self._make_and_send, warning, most=_MOST_SENT, gather_s=_GATHER_S)

    def begin(self, job: str, began_s: float) -> JobTrace:
        """Begin the trace of a job. Nothing is sent before it has a turn."""
        return JobTrace(job, began_s)

    def add_turn(self, trace: JobTrace, turn: TurnView, headers: Mapping[str, str] | None) -> None:
        """Tell of a turn that has ended; `headers` may name the span of the client that asked."""
        self.put(partial(self._make_turn, trace, turn, headers))

    def add_pause(self, trace: JobTrace, turn: TurnView, now_s: float) -> None:
        """Tell of the tools that a turn called, whose results have come now."""
        for tool in turn.tools:
            self.put(partial(self._make_tool, trace, turn, tool, now_s))

    def end(self, trace: JobTrace, summary: JobSummary, finished_s: float) -> None:
        """Tell of a job that is over, whose last reply was complete at `finished_s`."""
        self.put(partial(self._make_root, trace, summary, finished_s))

    def close(self) -> None:
        """Send what waits, within seconds."""
        super().close()
        self._exporter.shutdown()

    def _make_and_send(self, makers: Sequence[Callable[[], None]]) -> None:
        for make in makers:
            make()
        spans = self._ended.get_finished_spans()
        self._ended.clear()
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the collector took none")

    def _make_turn(self, trace: JobTrace, turn: TurnView, headers: Mapping[str, str] | None) -> None:
        said = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._model,
            "gen_ai.response.id": turn.request_id,
            "gen_ai.response.finish_reasons": ["tool_calls" if turn.tools else _REASONS[turn.status]],
            "gen_ai.response.time_to_first_chunk": turn.first_token_s and turn.first_token_s - turn.arrived_s,
            "gen_ai.usage.input_tokens": turn.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": turn.cached_tokens,
            "gen_ai.usage.output_tokens": turn.output_tokens,
            "agentcache.computed_tokens": turn.computed_tokens,
            "agentcache.recomputed_tokens": turn.recomputed_tokens,
            "agentcache.change": turn.change and turn.change.cause,
            **_spread("wait_s", turn.waits),
            **_spread("missed_tokens", turn.misses),
            **_spread("hit_tokens", turn.hits),
        }
        asked_in = get_current_span(TraceContextTextMapPropagator().extract(headers or {}, Context()))
        links = [Link(asked_in.get_span_context())] if asked_in.get_span_context().is_valid else []
        name = f"chat {self._model}"
        span = self._begin(trace, turn, name, turn.arrived_s, said, kind=SpanKind.SERVER, links=links)
        for event, at_s in (("admitted", turn.scheduled_s), ("first token", turn.first_token_s)):
            if at_s is not None:
                span.add_event(event, timestamp=self._count_ns(at_s))
        if turn.status == "failed":
            span.set_status(StatusCode.ERROR)
        span.end(self._count_ns(turn.finished_s))

    def _make_tool(self, trace: JobTrace, turn: TurnView, tool: str, now_s: float) -> None:
        said = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        self._begin(trace, turn, f"execute_tool {tool}", turn.finished_s, said).end(self._count_ns(now_s))

    def _make_root(self, trace: JobTrace, summary: JobSummary, finished_s: float) -> None:
        root = self._find_root(trace)
        said = {f"agentcache.{name}": getattr(summary, name) for name in _OF_JOB}
        said["gen_ai.conversation.id"] = self._name(trace.session, trace.job)
        root.set_attributes(_write(said | _spread("wait_s", summary.waits_s)))
        root.end(self._count_ns(finished_s))

    def _find_root(self, trace: JobTrace) -> Span:
        if trace.root is None:
            said = {"gen_ai.operation.name": "invoke_agent"}
            start_ns = self._count_ns(trace.began_s)
            trace.root = self._tracer.start_span("invoke_agent", Context(), attributes=said, start_time=start_ns)
        return trace.root

    def _begin(
        self, trace: JobTrace, turn: TurnView, name: str, began_s: float, said: Mapping[str, Any], **more: Any
    ) -> Span:
        """Begin a span of a turn inside that of its job."""
        named = {
            "gen_ai.conversation.id": self._name(trace.session, trace.job),
            "gen_ai.agent.id": turn.thread and self._name(turn.thread, turn.thread),
            "agentcache.turn": turn.turn,
        }
        inside, attributes = set_span_in_context(self._find_root(trace), Context()), _write({**said, **named})
        return self._tracer.start_span(
            _encode(name), inside, attributes=attributes, start_time=self._count_ns(began_s), **more
        )

    def _name(self, name: str | None, otherwise: str) -> str:
        return name if name and self._names.are_told else self._names.make_id(otherwise)

    def _count_ns(self, at_s: float) -> int:
        return self._since_ns + round(at_s * 1e9)


def make_exporter(endpoint: str) -> SpanExporter:
    """Make what sends spans to the endpoint, by the protocol that vLLM sends its own."""
    if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        return grpc.OTLPSpanExporter(endpoint=endpoint, insecure=True)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

    return http.OTLPSpanExporter(endpoint=endpoint)


def _is_of_others(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD


def _spread(name: str, values: Mapping[Any, float]) -> dict[str, float]:
    return {f"agentcache.{name}.{key.replace(' ', '_')}": value for key, value in values.items()}


def _write(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is not known, cut short what is long, and replace what UTF-8 has no place for."""
    return {
        name: _encode(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


def _encode(text: str) -> str:
    return text[:_LONGEST].encode("utf-8", "replace").decode()
