"""Where a prompt's own messages end: behind them comes what begins the reply, which a later prompt may leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentcache.engine.vllm.types import Request

# Templates begin a reply by its role, and some by an empty thought: no more tokens than this.
_MAX_REPLY_HEAD = 32


class PromptEnd(NamedTuple):
    """The tokens of a prompt behind its last full block, up to the end of its last message."""

    blocks: int
    tail: tuple[int, ...]

    def is_in(self, tokens: Sequence[int], shared_blocks: int, block_size: int) -> bool:
        """Tell whether a prompt that has `shared_blocks` of these blocks has all of this prompt's messages."""
        behind = self.blocks * block_size
        return self.blocks <= shared_blocks and tuple(tokens[behind : behind + len(self.tail)]) == self.tail


def find_prompt_end(request: Request, block_size: int) -> PromptEnd:
    """Find where the messages end: behind the last end-of-turn token if one is near, else where the prompt does."""
    tokens = request.prompt_token_ids or ()
    end = len(tokens)
    end_of_turn = request.sampling_params.eos_token_id if request.sampling_params is not None else None
    head = tokens[max(1, end - _MAX_REPLY_HEAD) :]
    if end_of_turn is not None and end_of_turn in head:
        end -= head[::-1].index(end_of_turn)
    blocks = end // block_size
    return PromptEnd(blocks, tuple(tokens[blocks * block_size : end]))
