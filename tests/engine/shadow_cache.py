"""What the slots of a paged KV cache would hold, had the scheduler's steps been run: the oracle of every reuse.

A slot's keys and values depend on all tokens up to its own; here it holds a digest of those tokens instead.
"""

from __future__ import annotations

import zlib
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput


class ShadowCache:
    """Runs each step as a worker does: all rows write first, then every row reads all that is before its end."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.slots = [0] * (num_blocks * block_size)
        self._block_size = block_size
        self._tables: dict[str, list[int]] = {}
        self._tokens: dict[str, list[int]] = {}
        # By request: the digest of its first n tokens, for n from 0.
        self._digests: dict[str, list[int]] = {}

    def run(self, output: SchedulerOutput, requests: dict[str, Any]) -> None:
        """Asserts that every row finds the keys and values of its own tokens."""
        rows = self._take_rows(output, requests)
        for name, computed, new in rows:
            for position in range(computed, computed + new):
                self.slots[self._slot(name, position)] = self._digest(name, position)
        for name, computed, new in rows:
            for position in range(computed + new):
                found, wanted = self.slots[self._slot(name, position)], self._digest(name, position)
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
            self._digests[name] = [1]
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
            rows.append((new.req_id, new.num_computed_tokens))
        for name, computed, blocks in zip(old.req_ids, old.num_computed_tokens, old.new_block_ids, strict=True):
            kept = [] if name in old.resumed_req_ids else self._tables[name]
            self._tables[name] = kept + list(blocks[0] if blocks else [])
            rows.append((name, computed))
        return [(name, computed, output.num_scheduled_tokens[name]) for name, computed in rows]

    def _slot(self, name: str, position: int) -> int:
        block, offset = divmod(position, self._block_size)
        return self._tables[name][block] * self._block_size + offset

    def _digest(self, name: str, position: int) -> int:
        digests, tokens = self._digests[name], self._tokens[name]
        while len(digests) <= position + 1:
            digests.append(zlib.crc32(tokens[len(digests) - 1].to_bytes(4, "big"), digests[-1]))
        return digests[position + 1]
