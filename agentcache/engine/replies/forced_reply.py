"""Has the V1 model runner (CPU) sample the reply that a client dictates; the V2 runner has a trace replay of its own.

The front end hands the reply to either (`front_end/forced_replies.py`).
"""

from __future__ import annotations

import torch

from agentcache.engine.marks import find_forced_reply
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.types import SamplingParams
from agentcache.engine.vllm.workers import BatchUpdate, LogitsProcessor, process_dict_updates


class ForcedReplyProcessor(LogitsProcessor):
    """Leaves only the next recorded token a chance."""

    def __init__(self, _vllm_config: VllmConfig, _device: torch.device, _is_pin_memory: bool) -> None:
        # Batch row -> (recorded reply, the request's live list of output tokens).
        self._rows: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: the recorded token is another than the most likely one."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the rows of the batch that have a recorded reply."""
        process_dict_updates(self._rows, batch_update, _recorded_reply)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask all but the next recorded token of each such row, in place. `logits` is [rows, vocabulary]."""
        for row, (reply, output) in self._rows.items():
            if len(output) < len(reply):
                logits[row] = -torch.inf
                logits[row, reply[len(output)]] = 0.0
        return logits


def _recorded_reply(
    params: SamplingParams, _prompt: list[int] | None, output: list[int]
) -> tuple[list[int], list[int]] | None:
    reply = find_forced_reply(params)
    # A front end other than Python's has checked nothing.
    is_reply = isinstance(reply, list) and all(type(token) is int for token in reply)
    return (reply, output) if is_reply else None
