"""The time that a request and its reply spend between the client and the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """The API server as delays: HTTP, chat template, tokens of the prompt; then tool-call parser, text and HTTP.

    All in seconds. One process serves everybody, so both ways take longer by `*_beside_s` for each other request in
    the engine, whose tokens it streams meanwhile. The defaults are no front end: the client stands beside the engine.
    """

    request_s: float = 0.0
    prompt_token_s: float = 0.0
    request_beside_s: float = 0.0
    reply_s: float = 0.0
    reply_beside_s: float = 0.0

    def request_delay_s(self, prompt_tokens: int, beside: int) -> float:
        """Predict the seconds from the client's sending to the engine, with `beside` requests in it."""
        return self.request_s + prompt_tokens * self.prompt_token_s + beside * self.request_beside_s

    def reply_delay_s(self, beside: int) -> float:
        """Predict the seconds from the engine's last token to the client, with `beside` requests left in it."""
        return self.reply_s + beside * self.reply_beside_s


# Fitted to 970 requests of two replays of BFCL on an H200 (docs/results/simulator-error.md): `vllm serve`'s one API
# process, streaming, and the replay's client, on the 32 cores of a host with two such engines.
MEASURED_FRONT_END = FrontEnd(
    request_s=0.010, prompt_token_s=4.3e-6, request_beside_s=0.003, reply_s=0.018, reply_beside_s=0.001
)
