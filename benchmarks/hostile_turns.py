"""What clients may do to hold up an engine core with requests, each at its largest size."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hostile_core import END_OF_TURN, LONGEST_PROMPT, Core

from agentcache.engine.constants import (
    CALLS_ARGUMENT,
    REPLY_ARGUMENT,
    ROLES_ARGUMENT,
    SENT_ARGUMENT,
    TOOLS_DECLARED_ARGUMENT,
)
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_session
from tool_runtime.agent.job import ToolCall

LOOK = [ToolCall("look", "{}")]
_HUGE = "x" * 1_000_000


class Attack(NamedTuple):
    """`run` does it to an engine core, one with a CPU cache where it `needs_host`."""

    name: str
    run: Callable[[Core], None]
    needs_host: bool = False
    has_stock: bool = True


def make_prompt(tokens: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(100_000), k=tokens)


def send(core: Core, prompts: Iterable[Sequence[int]], **options: Any) -> None:
    """Send requests without a session, a few at a time, and serve them."""
    for prompt in prompts:
        core.offer(prompt, **options)
    core.run()


def tell(roles: str, tools: str = "") -> dict[str, Any]:
    """What an API server tells the core of messages with these roles; all have the same text."""
    sent = {"messages": "".join(f"{role}00000000" for role in roles), "tools": tools, "options": ""}
    return {ROLES_ARGUMENT: roles, SENT_ARGUMENT: sent}


def name_sessions(core: Core, count: int, prompt_tokens: int = 17, **options: Any) -> None:
    for place in range(count):
        core.offer([place % 50_000] * prompt_tokens, session_id=f"session-{place}", **options)
    core.run()


def stop_token_ids(core: Core) -> None:
    before, behind = make_prompt(60_000), make_prompt(40_000, 1)
    marks = tell("su" * 40)
    params = {"stop_token_ids": list(range(10_000))}
    for changed in (1, 2):
        core.add([*before, changed, *behind], session_id="one", calls=LOOK, marks=marks, params=params)
        core.run()


def stop_strings(core: Core) -> None:
    stop = [f"{number} {'x' * 1000}" for number in range(10_000)]
    for number in range(4):
        core.add([number] * 100, session_id="one", calls=None, params={"stop": stop, "detokenize": True})
        core.run()


def owners_of_one_block(core: Core) -> None:
    system = make_prompt(16)
    marks = {ROLES_ARGUMENT: "sua"}
    prompts = ([*system, number & 255, number >> 8, *range(12)] for number in range(20_000))
    send(core, prompts, marks=marks, calls=LOOK)
    for _ in range(3):
        send(core, [[*system, *make_prompt(200)]], marks=marks)


def tails_of_many_blocks(core: Core) -> None:
    prompt = make_prompt(20_000)
    marks = {ROLES_ARGUMENT: "sua"}
    ends = range(16, 20_000, 13)
    prompts = ([*prompt[:end], END_OF_TURN, 7] for end in ends)
    send(core, prompts, marks=marks, calls=LOOK, params={"ignore_eos": True})
    send(core, [[*prompt, 9]], marks=marks)


def pins_of_one_context(core: Core) -> None:
    context = make_prompt(100_000)
    core.add(context, calls=LOOK)
    core.run()
    send(core, ([*context, number] for number in range(2_000)), calls=LOOK)
    core.add(make_prompt(100_000, 1))
    core.run()


def pins_in_a_staircase(core: Core) -> None:
    context = make_prompt(64_000)
    core.add(context, calls=LOOK)
    core.run()
    send(core, (context[: 64_000 - 64 * number] for number in range(900)), calls=LOOK)
    core.add(make_prompt(100_000, 1))
    core.run()


def a_cache_of_pins_is_lost(core: Core) -> None:
    name_sessions(core, 4_000, 120, calls=LOOK)
    for seed in range(4):
        core.add(make_prompt(LONGEST_PROMPT - 512, seed))
    core.run()


def sessions_that_expire(core: Core) -> None:
    name_sessions(core, 10_000, 40, calls=LOOK)
    core.rest(4_000)
    for _ in range(50):
        core.add([1] * 20)
        core.run()


def sessions_of_one_block(core: Core) -> None:
    name_sessions(core, 16_000)


def one_session_of_many_turns(core: Core) -> None:
    for number in range(10_000):
        core.offer([number] * 20, session_id="one", calls=LOOK)
    core.run()
    core.do(lambda: _tracker_of(core).release("one"))
    core.step()


def a_tenant_for_each_request(core: Core) -> None:
    for number in range(10_000):
        core.offer([number] * 20, session_id="one", cache_salt=f"tenant {number}", calls=LOOK)
    core.run()
    tracker = _tracker_of(core)
    core.do(lambda: [view.model_dump(mode="json") for view in view_session(tracker, "one")])
    core.step()
    for _ in range(45):
        core.do(lambda: release(tracker, "one"))
        core.step()


def huge_names(core: Core) -> None:
    for number in range(20):
        marks = {TOOLS_DECLARED_ARGUMENT: [f"{number} {tool} {_HUGE[:31_000]}" for tool in range(64)]}
        names: dict[str, Any] = {"session_id": f"{number}{_HUGE}", "cache_salt": f"{number}{_HUGE}"}
        core.add([number] * 40, name=f"{number}{_HUGE}", marks=marks, calls=LOOK, **names)
        core.run()


def many_tools(core: Core) -> None:
    system = make_prompt(2_000)
    for number in range(200):
        names = [(tool + number) % 512 for tool in range(512)]
        marks = {
            TOOLS_DECLARED_ARGUMENT: [f"tool {name}" for name in names],
            **tell("su", "".join(f"{name:016x}" for name in names)),
        }
        core.add([number, *system], session_id="one", marks=marks, calls=LOOK)
        core.run()


def many_messages(core: Core) -> None:
    messages = [token for number in range(4_096) for token in (number, *range(20), END_OF_TURN)]
    marks = tell("ua" * 2_048)
    for number in range(10):
        changed = [*messages[:40_000], number, *messages[40_001:]]
        core.add(changed, session_id="one", marks=marks, calls=LOOK)
        core.run()


def odd_calls(core: Core) -> None:
    lines = ["a" * 60_000, "a; " * 20_000, "'" * 60_000, "$(" * 30_000, "\\" * 60_000, "a|" * 30_000]
    for number, line in enumerate(lines * 20):
        calls = [ToolCall(f"{number} {_HUGE[:1000]}", json.dumps({"command": f"{number} {line}"})) for _ in range(8)]
        core.add([number] * 20, session_id=f"session-{number % 7}", calls=calls)
        core.run()


def deep_calls(core: Core) -> None:
    for number in range(20):
        deep = "[" * 500_000
        dictated: dict[str, Any] = {REPLY_ARGUMENT: [], CALLS_ARGUMENT: deep}
        core.add([number] * 20, session_id="one", calls=None, marks=dictated)
        core.add([number] * 20, session_id="one", calls=[ToolCall("look", "[" * 60_000)])
        core.run()


def many_calls(core: Core) -> None:
    for number in range(10):
        core.add([number] * 20, session_id="one", calls=[ToolCall(f"tool {call}", "{}") for call in range(10_000)])
        core.run()


def tools_of_all_names(core: Core) -> None:
    for number in range(4_000):
        core.offer([number] * 20, session_id=f"session-{number % 50}", calls=[ToolCall(f"tool {number}", "{}")])
    core.run()


def all_blocks_but_one(core: Core) -> None:
    shared = make_prompt(64_000)
    for number in range(60):
        place = 16 * (number * 61 % 4_000)
        core.add([*shared[:place], *[number] * 16, *shared[place + 16 :]])
        core.run()


def samples_of_one_prompt(core: Core) -> None:
    prompt = make_prompt(16_000)
    send(core, itertools.repeat(prompt, 1_024), calls=None, reply=16)


def beams(core: Core) -> None:
    prompt = make_prompt(16_000)
    for step in range(30):
        for beam in range(64):
            core.offer([*prompt, *[beam] * (step + 1)], calls=None)
        core.run()


def a_long_queue(core: Core) -> None:
    core.add(make_prompt(60_000), reply=64)
    for number in range(6_000):
        core.offer([number] * 20, session_id=f"session-{number}", reply=64)
    core.run(300)


def cancel_storms(core: Core) -> None:
    for _ in range(10):
        for number in range(256):
            core.offer([number] * 40, session_id=f"session-{number}", reply=64)
        core.abort(list(core.scheduler.requests))
        core.step()


def resets(core: Core) -> None:
    name_sessions(core, 1_000, 160, calls=LOOK)
    for number in range(20):
        core.do(core.scheduler.reset_prefix_cache)
        core.add([number] * 40, session_id=f"session-{number}", calls=LOOK)
        core.run()


def longest_prompts(core: Core) -> None:
    for seed in range(4):
        core.add(make_prompt(LONGEST_PROMPT - 512, seed), session_id="one", calls=LOOK)
        core.run()


def _tracker_of(core: Core) -> Any:
    return core.scheduler.tracker


ATTACKS = (
    Attack("10,000 stop_token_ids, prompts of 100,000 tokens", stop_token_ids),
    Attack("10,000 stop strings of 1,000 characters", stop_strings),
    Attack("20,000 chats that share one block", owners_of_one_block),
    Attack("1,537 prompts that end in one another", tails_of_many_blocks),
    Attack("2,000 pins of one context of 100,000 tokens", pins_of_one_context),
    Attack("900 pins, each of a shorter part of one context", pins_in_a_staircase),
    Attack("4,000 pins, then prompts that need their room", a_cache_of_pins_is_lost),
    Attack("10,000 sessions that expire at once", sessions_that_expire),
    Attack("the same, with a CPU cache", sessions_that_expire, needs_host=True, has_stock=False),
    Attack("16,000 sessions of one block", sessions_of_one_block),
    Attack("10,000 turns of one session, then its end", one_session_of_many_turns, has_stock=False),
    Attack("one session of 10,000 tenants, viewed and ended", a_tenant_for_each_request, has_stock=False),
    Attack("names of 1 MB, tools of 2 MB", huge_names),
    Attack("512 tools, in another order each time", many_tools),
    Attack("4,096 messages, one of them changed", many_messages),
    Attack("shell commands of 60,000 odd characters, 8 a turn", odd_calls),
    Attack("tool calls in 500,000 brackets", deep_calls),
    Attack("10,000 calls in a turn", many_calls),
    Attack("4,000 tool names", tools_of_all_names),
    Attack("prompts of 64,000 tokens, all blocks shared but one", all_blocks_but_one),
    Attack("1,024 samples of a prompt of 16,000 tokens", samples_of_one_prompt),
    Attack("64 beams, 30 tokens", beams),
    Attack("a queue of 6,000 sessions", a_long_queue),
    Attack("256 requests that are cancelled at once", cancel_storms),
    Attack("the prefix cache reset with 1,000 sessions", resets),
    Attack("prompts of 130,000 tokens", longest_prompts),
)
