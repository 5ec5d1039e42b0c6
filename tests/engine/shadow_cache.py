"""What the slots of a paged KV cache would hold, had the scheduler's steps been run: the oracle of every reuse.

A slot's keys and values depend on all tokens up to its own, and on the layers that wrote them; here it holds a digest
of those tokens that begins with the number of the layers' group.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import eq
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, KVCacheSpec, SlidingWindowSpec

# The digest of no tokens.
_NO_TOKENS = 1


class ShadowCache:
    """Runs each step as a worker does: all rows write first, then every row reads what its layers see."""

    def __init__(self, num_blocks: int, specs: Sequence[KVCacheSpec]) -> None:
        self._specs = specs
        self._block_size = specs[0].block_size
        self.slots = [0] * (num_blocks * self._block_size)
        self._tables: dict[str, list[list[int]]] = {}
        self._tokens: dict[str, list[int]] = {}
        # By request and group: the digest of its first n tokens, for n from 0.
        self._digests: dict[str, list[list[int]]] = {}

    def run(self, output: SchedulerOutput, requests: dict[str, Any]) -> None:
        """Asserts that every row finds the keys and values of its own tokens."""
        rows = self._take_rows(output, requests)
        for group in range(len(self._specs)):
            for name, computed, new in rows:
                for _, slots, digests in self._find_blocks(name, group, computed, computed + new):
                    self.slots[slots] = digests
        for group, spec in enumerate(self._specs):
            for name, computed, new in rows:
                for first, slots, digests in self._find_blocks(
                    name, group, find_first_seen(spec, computed), computed + new
                ):
                    if (found := self.slots[slots]) != digests:
                        same = list(map(eq, found, digests))
                        raise AssertionError(
                            f"{name} reads other keys and values than its own at {first + same.index(False)}"
                        )
        for name in output.finished_req_ids:
            for known in (self._tables, self._tokens, self._digests):
                known.pop(name, None)

    def sampled(self, name: str, tokens: list[int]) -> None:
        self._tokens[name] += tokens

    def _take_rows(self, output: SchedulerOutput, requests: dict[str, Any]) -> list[tuple[str, int, int]]:
        rows = []
        old = output.scheduled_cached_reqs
        for name in [*(new.req_id for new in output.scheduled_new_reqs), *old.resumed_req_ids]:
            self._tokens[name] = list(requests[name].all_token_ids)
            self._digests[name] = [[_NO_TOKENS + group] for group in range(len(self._specs))]
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = [list(blocks) for blocks in new.block_ids]
            rows.append((new.req_id, new.num_computed_tokens))
        for name, computed, blocks in zip(old.req_ids, old.num_computed_tokens, old.new_block_ids, strict=True):
            if name in old.resumed_req_ids:
                self._tables[name] = [[] for _ in self._specs]
            for table, added in zip(self._tables[name], blocks or (), strict=False):
                table.extend(added)
            rows.append((name, computed))
        return [(name, computed, output.num_scheduled_tokens[name]) for name, computed in rows]

    def _find_blocks(self, name: str, group: int, start: int, end: int) -> Iterator[tuple[int, slice, list[int]]]:
        """Block by block: the first position, the slots, and the digests that belong there."""
        digests, size = self._digests[name][group], self._block_size
        if len(digests) <= end:
            digests += digest_tokens(self._tokens[name][len(digests) - 1 : end], digests[-1])
        while start < end:
            block, offset = divmod(start, size)
            stop = min(end, start - offset + size)
            slot = self._tables[name][group][block] * size + offset
            yield start, slice(slot, slot + stop - start), digests[start + 1 : stop + 1]
            start = stop


def digest_tokens(tokens: Sequence[int], before: int = _NO_TOKENS) -> list[int]:
    """The digest up to each of the tokens; `before` is that of what precedes them."""
    return list(accumulate(tokens, lambda digest, token: zlib.crc32(token.to_bytes(4, "big"), digest), initial=before))[
        1:
    ]


def find_first_seen(spec: KVCacheSpec, position: int) -> int:
    """The first token that the one at `position` sees in layers of this kind."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, position - spec.sliding_window + 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return position // spec.attention_chunk_size * spec.attention_chunk_size
    return 0
