"""What clients' requests leave in the engine takes so many bytes at most, whatever they call things."""

from __future__ import annotations

import pytest
from hand_clock import Clock
from kept_objects import list_kept
from tracked_requests import ASKED, Tracked
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from agentcache._evictor import FreeContext, LruEvictor, PinnedEvictor
from agentcache.engine.blocks.pins import Pin, PinEnd, Pins
from agentcache.engine.jobs.turn_chains import Prompt, TurnChains
from agentcache.engine.marks import ReplyIds
from agentcache.engine.request_state import MAX_TURN_BYTES
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_jobs
from tool_runtime.learning.ttl import Hold

LONG = "x" * 100_000


def test_turns_with_huge_prompts_leave_their_table() -> None:
    chains = TurnChains(16)
    for turn in range(200):
        chains.note(f"huge {turn}", Prompt([bytes(32)] * 1000, asked=LONG))
    assert chains.compare("huge 0", Prompt([bytes(32)])).shared_tokens == 0
    assert chains.compare("huge 199", Prompt([bytes(32)])).shared_tokens == 16
    assert sum(map(len, list_kept(chains, str))) + sum(map(len, list_kept(chains, bytes))) <= MAX_TURN_BYTES
    chains.note("too large", Prompt([], asked="x" * MAX_TURN_BYTES))
    assert chains.compare("huge 198", Prompt([bytes(32)])).shared_tokens == 16


def test_a_tenants_long_salt_is_kept_short() -> None:
    replies: ReplyIds[str] = ReplyIds()
    replies.note("chatcmpl-1-0a1b2c3d", LONG, "job")
    assert replies.find("chatcmpl-1", [LONG]) == "job"
    assert replies.find("chatcmpl-1", [LONG + "x"]) is None
    assert max(map(len, list_kept(replies, str))) <= 64


def test_a_nameless_session_is_found_by_its_long_request() -> None:
    tracked = Tracked()
    tracked.turn(LONG, ASKED, salt="tenant")
    (view,) = view_jobs(tracked.tracker)
    assert len(view.session) <= 64
    assert release(tracked.tracker, view.session, ["tenant"]) == [view.session]


def test_ended_waits_and_pins_leave_nothing_behind() -> None:
    clock = Clock()
    evictor = PinnedEvictor(LruEvictor(), num_blocks=8, cheapest_first=True)
    evictor.add([6, 7], [16, 32], clock(), FreeContext())
    pins = Pins(evictor, budget_blocks=8, clock=clock)
    blocks = [KVCacheBlock(number, ref_cnt=1, _block_hash=b"hash") for number in range(4)]  # type: ignore[arg-type]
    for number in range(500):
        pins.guard(f"waits {number}", [6, 7], 1.0)
        assert evictor.adopted == 2
        pins.drop_guard(f"waits {number}")
        pins.begin(
            f"turn {number}",
            job="job",
            tenant="",
            turn=number,
            blocks=blocks,
            decide=lambda *_: Hold(10.0, 1.0),
            rank=lambda _: 1.0,
        )
        pins.end(f"turn {number}", PinEnd.RETURNED)
        clock.now_s += 1.0
        pins.step()
    assert [name for name in list_kept(pins, str) if name.startswith(("waits", "turn "))] == []
    assert list_kept(pins, Pin) == []
    assert len(list_kept(pins, tuple)) < 50, "pins of the last ten seconds"


@pytest.mark.parametrize(
    ("request_id", "reply"),
    [
        ("chatcmpl-1-0a1b2c3d", "chatcmpl-1"),
        ("resp_77_12-0a1b2c3d", "resp_77"),
        ("resp_77-0a1b2c3d", None),
        ("resp_5-0a1b2c3d", None),
        ("no suffix", None),
    ],
)
def test_a_reply_has_its_request_s_id_without_suffixes(request_id: str, reply: str | None) -> None:
    replies: ReplyIds[str] = ReplyIds()
    replies.note(request_id, None, "job")
    assert replies.find(reply or request_id, [None]) == (None if reply is None else "job")
    assert set(list_kept(replies, str)) <= {reply, "job"}
