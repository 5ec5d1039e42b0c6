"""What clients' requests leave in the engine takes so many bytes at most, whatever they call things."""

from __future__ import annotations

import pytest
from tracked_requests import ASKED, Tracked

from agentcache.engine.jobs.turn_chains import MAX_BYTES, Prompt, TurnChains
from agentcache.engine.marks import ReplyIds
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_jobs

LONG = "x" * 100_000


def test_turns_with_huge_prompts_leave_their_table() -> None:
    chains = TurnChains(16)
    for turn in range(200):
        chains.note(f"huge {turn}", Prompt([bytes(32)] * 1000, asked=LONG))
    assert chains.compare("huge 0", [bytes(32)]).shared_tokens == 0
    assert chains.compare("huge 199", [bytes(32)]).shared_tokens == 16
    assert chains._turns.currsize <= MAX_BYTES
    chains.note("too large", Prompt([], asked="x" * MAX_BYTES))
    assert chains.compare("huge 198", [bytes(32)]).shared_tokens == 16


def test_a_tenants_long_salt_is_kept_short() -> None:
    replies: ReplyIds[str] = ReplyIds()
    replies.note("chatcmpl-1-0a1b2c3d", LONG, "job")
    assert replies.find("chatcmpl-1", [LONG]) == "job"
    assert replies.find("chatcmpl-1", [LONG + "x"]) is None
    assert max(len(tenant or "") for _, tenant in replies._owners.values()) <= 64


def test_a_nameless_session_is_found_by_its_long_request() -> None:
    tracked = Tracked()
    tracked.turn(LONG, ASKED, salt="tenant")
    (view,) = view_jobs(tracked.tracker)
    assert len(view.session) <= 64
    assert release(tracked.tracker, view.session, ["tenant"]) == [view.session]


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
    assert list(replies._owners) == ([] if reply is None else [reply])
