"""What the slots of a paged KV cache would hold, had the scheduler's steps been run: the oracle of every reuse.

A slot's keys and values depend on all tokens up to its own, and on the layers that wrote them; here it holds a digest
of those tokens and the number of the layers' group instead.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate
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
        self.slots: list[int | tuple[int, int]] = [0] * (num_blocks * self._block_size)
        self._tables: dict[str, list[list[int]]] = {}
        self._tokens: dict[str, list[int]] = {}
        # By request: the digest of its first n tokens, for n from 0.
        self._digests: dict[str, list[int]] = {}

    def run(self, output: SchedulerOutput, requests: dict[str, Any]) -> None:
        """Asserts that every row finds the keys and values of its own tokens."""
        rows = self._take_rows(output, requests)
        for group in range(len(self._specs)):
            for name, computed, new in rows:
                for position in range(computed, computed + new):
                    self.slots[self._slot(name, group, position)] = (group, self._digest(name, position))
        for group, spec in enumerate(self._specs):
            for name, computed, new in rows:
                for position in range(find_first_seen(spec, computed), computed + new):
                    found = self.slots[self._slot(name, group, position)]
                    wanted = (group, self._digest(name, position))
                    assert found == wanted, f"{name} reads other keys and values than its own at {position}"
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
            self._digests[name] = [_NO_TOKENS]
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

    def _slot(self, name: str, group: int, position: int) -> int:
        block, offset = divmod(position, self._block_size)
        return self._tables[name][group][block] * self._block_size + offset

    def _digest(self, name: str, position: int) -> int:
        digests = self._digests[name]
        if len(digests) <= position + 1:
            digests += digest_tokens(self._tokens[name][len(digests) - 1 : position + 1], digests[-1])
        return digests[position + 1]


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
