"""Numbers for the blocks of many sessions, whose own ids mean something only within one session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

from converters.agent_trace_file import Request


@dataclass(frozen=True, slots=True)
class Thread:
    """The requests of one agent in order. Its prompts begin with tool definitions, then the system prompt."""

    tool_tokens: int
    system_tokens: int
    requests: Sequence[Request]


class BlockNumbers:
    """Two blocks of a run get the same number if they are one block of a session, or at one place of a shared head.

    The blocks of the tool definitions are shared by agents with equally long definitions, those of the system prompt
    by agents for which both are equally long.
    """

    def __init__(self) -> None:
        self._unused = count()
        self._heads: defaultdict[tuple[int, ...], int] = defaultdict(self._unused.__next__)

    @property
    def shared(self) -> frozenset[int]:
        """Return the numbers of shared heads."""
        return frozenset(self._heads.values())

    def number(self, threads: Sequence[Thread], block_tokens: int) -> list[list[tuple[int, ...]]]:
        """Give numbers to the blocks of the threads' requests: those recorded, and one for a tail that is not full."""
        numbers = self._number_heads(threads, block_tokens)
        prompts = (request.hash_ids for thread in threads for request in thread.requests)
        for block in dict.fromkeys(chain.from_iterable(prompts)):
            if block not in numbers:
                numbers[block] = next(self._unused)
        return [self._number_prompts(thread, numbers, block_tokens) for thread in threads]

    def _number_heads(self, threads: Iterable[Thread], block_tokens: int) -> dict[int, int]:
        numbers: dict[int, int] = {}
        taken = set()
        for thread in threads:
            for place, block in zip(_place_head(thread, block_tokens), thread.requests[0].hash_ids, strict=False):
                # Blocks that the session itself tells apart stay apart.
                if block not in numbers and self._heads[place] not in taken:
                    numbers[block] = self._heads[place]
                    taken.add(numbers[block])
        return numbers

    def _number_prompts(self, thread: Thread, numbers: dict[int, int], block_tokens: int) -> list[tuple[int, ...]]:
        """Go from the back: a tail that is not full begins the block that the next prompt has there."""
        prompts: list[tuple[int, ...]] = []
        following: tuple[int, ...] = ()
        for request in reversed(thread.requests):
            blocks = tuple(map(numbers.__getitem__, request.hash_ids))
            full = len(blocks)
            if full * block_tokens < max(1, request.prompt_tokens):
                goes_on = len(following) > full and following[:full] == blocks
                blocks += (following[full] if goes_on else next(self._unused),)
            prompts.append(blocks)
            following = blocks
        return prompts[::-1]


def _place_head(thread: Thread, block_tokens: int) -> Iterator[tuple[int, ...]]:
    """Return what each full block of tool definitions and system prompt is known by."""
    tool_blocks = thread.tool_tokens // block_tokens
    for position in range((thread.tool_tokens + thread.system_tokens) // block_tokens):
        if position < tool_blocks:
            yield thread.tool_tokens, position
        else:
            yield thread.tool_tokens, thread.system_tokens, position
