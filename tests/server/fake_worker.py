"""A server as a router sees it, in a process that starts at once and can be killed: `python fake_worker.py PORT`.

A chat is answered with the port and the session's header, "named by PORT" in the answer's if it has none. One that
streams gets a piece, and its end after /release.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event

released = Event()


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/release":
            released.set()
        self._answer({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        # What vLLM's chunks and answers have, as far as the router reads it.
        answer = {"id": "1", "object": "chat.completion", "choices": [], "port": self.server.server_port}  # type: ignore[attr-defined]
        answer["session"] = self.headers.get("X-Session-ID")
        if body.get("stream"):
            self._stream(answer)
        else:
            self._answer(answer)

    def _stream(self, answer: dict[str, object]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: " + json.dumps(answer).encode() + b"\n\n")
        self.wfile.flush()
        released.wait()
        self.wfile.write(b"data: [DONE]\n\n")

    def _answer(self, answer: dict[str, object]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if not self.headers.get("X-Session-ID"):
            self.send_header("X-Session-ID", f"named by {self.server.server_port}")  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Worker).serve_forever()
