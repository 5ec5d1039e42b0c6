"""The shadow LRU does what one does that looks at everything each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.observe.lru_comparison import ShadowLru
from agentcache.errors import IntegrityError

# Chains of blocks as conversations have them: a block is known by all that comes before it.
CHAIN = st.lists(st.sampled_from("ab"), max_size=6).map(
    lambda parts: ["".join(parts[: n + 1]) for n in range(len(parts))]
)


@dataclass
class SlowLru:
    """Knows of each computed block when it was used last, and counts anew what is used."""

    num_blocks: int
    stamps: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    requests: dict[str, tuple[list[bytes], int]] = field(default_factory=dict)
    times: count[int] = field(default_factory=count)

    def find_used(self) -> set[bytes]:
        return {block for hashes, _ in self.requests.values() for block in hashes}

    def list_free(self) -> list[bytes]:
        used = self.find_used()
        return sorted((block for block in self.stamps if block not in used), key=self.stamps.__getitem__)

    def admit(self, name: str, hashes: list[bytes], num_blocks: int, most_hits: int) -> int:
        here = self.find_used() | set(self.stamps)
        hits = next((n for n, block in enumerate(hashes[:most_hits]) if block not in here), len(hashes[:most_hits]))
        self.requests[name] = hashes, num_blocks - len(hashes)
        self.evict()
        return hits

    def end(self, name: str, computed: list[bytes], num_blocks: int) -> None:
        hashes, unhashed = self.requests[name]
        self.requests[name] = hashes, max(unhashed, num_blocks - len(hashes))
        self.evict()
        del self.requests[name]
        now = next(self.times)
        here = [block for block in hashes if block in self.stamps]
        for index, block in enumerate(max(computed, here, key=len)):
            self.stamps[block] = now, -index
        self.evict()

    def evict(self) -> None:
        free = self.list_free()
        room = self.num_blocks - len(self.find_used()) - sum(unhashed for _, unhashed in self.requests.values())
        for block in free[: max(0, len(free) - max(0, room))]:
            del self.stamps[block]


def encode(chain: list[str]) -> list[bytes]:
    return [block.encode() for block in chain]


@given(num_blocks=st.integers(1, 12), data=st.data())
def test_it_equals_an_lru_that_counts_everything_anew(num_blocks: int, data: st.DataObject) -> None:
    shadow, slow = ShadowLru(num_blocks), SlowLru(num_blocks)
    for number in range(data.draw(st.integers(0, 25), "calls")):
        if slow.requests and data.draw(st.booleans(), "ends"):
            name = data.draw(st.sampled_from(sorted(slow.requests)), "who")
            hashes = slow.requests[name][0]
            reply = [b"".join((*hashes[-1:], b"x" * (n + 1))) for n in range(data.draw(st.integers(0, 2), "reply"))]
            computed = (hashes + reply)[: data.draw(st.integers(0, len(hashes) + 2), "computed")]
            room = len(computed) + data.draw(st.integers(0, 1), "without a hash")
            shadow.end(name, computed, num_blocks=room)
            slow.end(name, computed, room)
        else:
            hashes = encode(data.draw(CHAIN, "prompt"))
            room = len(hashes) + data.draw(st.integers(0, 1), "without a hash")
            most = data.draw(st.integers(0, len(hashes)), "most hits")
            hits = shadow.admit(str(number), hashes, num_blocks=room, most_hits=most)
            assert hits == slow.admit(str(number), hashes, room, most)
        shadow.check_integrity()
        assert shadow.list_free() == slow.list_free()


def test_the_end_of_a_request_goes_before_its_beginning() -> None:
    shadow = ShadowLru(6)
    for name, hashes in (("one", [b"a", b"b"]), ("two", [b"c", b"d"])):
        shadow.admit(name, hashes, num_blocks=2, most_hits=1)
        shadow.end(name, hashes, num_blocks=2)
    assert shadow.list_free() == [b"b", b"a", b"d", b"c"]


def test_running_requests_keep_their_blocks_beyond_its_room() -> None:
    shadow = ShadowLru(2)
    shadow.admit("one", [b"a", b"b"], num_blocks=2, most_hits=2)
    assert shadow.admit("two", [b"a", b"c"], num_blocks=3, most_hits=2) == 1
    shadow.check_integrity()
    shadow.end("one", [b"a", b"b"], num_blocks=2)
    assert shadow.list_free() == []
    shadow.end("two", [b"a", b"c"], num_blocks=2)
    assert shadow.list_free() == [b"c", b"a"]


def test_a_request_cut_short_leaves_what_it_hit_and_computed() -> None:
    shadow = ShadowLru(9)
    shadow.admit("one", [b"a", b"b"], num_blocks=2, most_hits=2)
    shadow.end("one", [b"a", b"b"], num_blocks=2)
    shadow.admit("two", [b"a", b"b", b"c", b"d"], num_blocks=4, most_hits=3)
    shadow.end("two", [], num_blocks=0)
    assert shadow.list_free() == [b"b", b"a"]


def test_a_request_cut_short_leaves_what_it_might_not_hit() -> None:
    shadow = ShadowLru(9)
    shadow.admit("one", [b"a", b"b"], num_blocks=2, most_hits=2)
    shadow.end("one", [b"a", b"b"], num_blocks=2)
    shadow.admit("two", [b"a"], num_blocks=1, most_hits=0)
    shadow.end("two", [], num_blocks=0)
    assert shadow.admit("three", [b"a", b"b"], num_blocks=2, most_hits=2) == 2


def test_a_request_cut_short_leaves_what_another_has_computed() -> None:
    shadow = ShadowLru(9)
    shadow.admit("one", [b"a"], num_blocks=1, most_hits=0)
    shadow.admit("two", [b"a", b"b"], num_blocks=2, most_hits=0)
    shadow.end("two", [b"a", b"b"], num_blocks=2)
    shadow.end("one", [], num_blocks=0)
    assert shadow.list_free() == [b"b", b"a"]


def test_a_reset_cache_knows_no_request() -> None:
    shadow = ShadowLru(9)
    shadow.admit("one", [b"a"], num_blocks=2, most_hits=1)
    shadow.clear()
    assert "one" not in shadow
    shadow.end("one", [b"a"], num_blocks=1)
    assert shadow.list_free() == []
    shadow.check_integrity()


def test_a_request_is_admitted_once() -> None:
    shadow = ShadowLru(9)
    shadow.admit("one", [], num_blocks=1, most_hits=0)
    with pytest.raises(ValueError, match="one has been admitted already"):
        shadow.admit("one", [], num_blocks=1, most_hits=0)


def test_contradictions_are_found() -> None:
    shadow = ShadowLru(1)
    shadow.admit("one", [b"a"], num_blocks=1, most_hits=0)
    shadow._free[b"b"] = None
    with pytest.raises(IntegrityError, match="has 2 blocks, and room for 1"):
        shadow.check_integrity()
    shadow._free[b"a"] = None
    with pytest.raises(IntegrityError, match="both free and used"):
        shadow.check_integrity()
    shadow._users[b"a"] = 2
    with pytest.raises(IntegrityError, match="not those of its requests"):
        shadow.check_integrity()
