"""A collector that keeps what it gets: OpenTelemetry's own service over gRPC, or the same over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from workloads.recording.span_file import read_attributes

SCOPE = "agentcache"


@dataclass
class Receiver(TraceServiceServicer):  # type: ignore[misc]
    """`requests` are as they came; `url` is where."""

    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    url: str = ""

    def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:  # noqa: ARG002, N802
        self.requests.append(request)
        return ExportTraceServiceResponse()

    def list_spans(self, scope: str = SCOPE) -> list[dict[str, Any]]:
        """The spans of a scope, as OTLP's JSON has them; `said` are their attributes."""
        found = []
        for request in self.requests:
            for each in request.resource_spans:
                for spans in each.scope_spans:
                    found += [MessageToDict(span) for span in spans.spans if spans.scope.name == scope]
        return [span | {"said": read_attributes(span)} for span in found]

    def write(self, path: Path) -> Path:
        """Write all that came as a collector's file exporter does."""
        path.write_text("".join(json.dumps(MessageToDict(request)) + "\n" for request in self.requests))
        return path


@contextmanager
def receive_grpc() -> Iterator[Receiver]:
    receiver, server = Receiver(), grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@contextmanager
def receive_http() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.Export(ExportTraceServiceRequest.FromString(body), None)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()
