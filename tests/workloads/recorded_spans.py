"""Spans of a program made by hand, as OTLP writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workloads.recording.reader import Recording, read_recording

START_S = 1_790_000_000


class Writer:
    """Writes the spans of a program as `(name, began, took, attributes)`, each with an id, in some exporter's shape."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def add(
        self,
        name: str,
        began_s: float,
        took_s: float,
        parent: str = "",
        *,
        trace: str = "t1",
        scope: str = "lib",
        **more: Any,
    ) -> str:
        attributes = {key.replace("__", "."): value for key, value in more.items()}
        span_id = f"{len(self.spans) + 1:016x}"
        self.spans.append(
            {"id": span_id, "name": name, "began": began_s, "ended": began_s + took_s, "parent": parent, "trace": trace}
            | {"scope": scope, "attributes": attributes}
        )
        return span_id

    def list_otlp(self) -> list[dict[str, Any]]:
        return [
            {
                "scope": {"name": span["scope"]},
                "spans": [
                    {
                        "traceId": span["trace"],
                        "spanId": span["id"],
                        "parentSpanId": span["parent"],
                        "name": span["name"],
                        "startTimeUnixNano": str(count_ns(span["began"])),
                        "endTimeUnixNano": str(count_ns(span["ended"])),
                        "attributes": [{"key": key, "value": wrap(value)} for key, value in span["attributes"].items()],
                    }
                ],
            }
            for span in self.spans
        ]

    def write_lines(self, path: Path) -> Path:
        path.write_text(
            "".join(json.dumps({"resourceSpans": [{"scopeSpans": [each]}]}) + "\n" for each in self.list_otlp())
        )
        return path

    def read(self, folder: Path) -> Recording:
        return read_recording(self.write_lines(folder / "spans.jsonl"))


def count_ns(seconds: float) -> int:
    return START_S * 10**9 + round(seconds * 1e9)


def wrap(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [wrap(each) for each in value]}}
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue"}
    return {kinds.get(type(value), "stringValue"): str(value) if type(value) is int else value}


def ask(prompt: int, reply: int, reason: str = "stop", **more: Any) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": reply,
        "gen_ai.response.finish_reasons": [reason],
        **more,
    }
