"""What clients may do to hold up an API server's event loop, each at the largest size that the server takes."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web
from hostile_process import Server

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_HELLO = [{"role": "user", "content": "hello"}]
_PAIR = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
# Enough of them to see the worst.
_POLLS = 300
# Sessions that expire are idle for so long.
IDLE_S = 60.0
# The watch for expired sessions asks once a minute.
_WATCH_S = 65.0
_numbers = itertools.count()


class Attack(NamedTuple):
    """`is_ours`: it asks for what stock vLLM has not."""

    name: str
    run: Callable[[Server], Awaitable[object]]
    is_ours: bool = False


async def ask_all(server: Server, requests: Iterable[Awaitable[int]]) -> None:
    """Ask, and fail where the server itself did."""
    statuses = set(await asyncio.gather(*requests))
    if any(status >= 500 for status in statuses):
        raise RuntimeError(f"the server answers with {sorted(statuses)}")
    await server.read()


def complete(server: Server, session: str, **options: Any) -> Awaitable[int]:
    prompt = [next(_numbers) % 250 for _ in range(8)]
    return server.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": 1, **options}, headers=[("X-Session-ID", session)])


def chat(server: Server, headers: Iterable[tuple[str, str]] = (), **options: Any) -> Awaitable[int]:
    return server.ask(CHAT, {"messages": _HELLO, "max_tokens": 1, **options}, headers=headers)


async def name_sessions(server: Server, count: int) -> None:
    await ask_all(server, (complete(server, f"session-{number}") for number in range(count)))


async def poll(server: Server, *paths: str) -> None:
    await ask_all(server, (server.ask(path) for _ in range(_POLLS) for path in paths))


async def poll_jobs(server: Server) -> None:
    await name_sessions(server, 600)
    await poll(server, "/agentcache/jobs?limit=500")


async def poll_report(server: Server) -> None:
    await poll(server, "/agentcache/report")


async def poll_counts(server: Server) -> None:
    await poll(server, "/agentcache/state", "/metrics")


async def poll_one_session(server: Server) -> None:
    await ask_all(server, (complete(server, "one") for _ in range(2_000)))
    await poll(server, "/agentcache/jobs/one")


async def end_sessions(server: Server) -> None:
    await name_sessions(server, 2_000)
    paths = (f"/agentcache/jobs/session-{number}" for number in range(2_000))
    await asyncio.gather(*(server.ask(path, method="DELETE") for path in paths))


async def sessions_that_expire(server: Server) -> None:
    await name_sessions(server, 10_000)
    await asyncio.sleep(IDLE_S + _WATCH_S)


async def send_many_headers(server: Server) -> None:
    headers = [(f"x-{number}", "y" * 4_000) for number in range(240)]
    await asyncio.gather(*(chat(server, headers) for _ in range(20)))


async def send_huge_names(server: Server) -> None:
    for name in ("X-Session-ID", "x-dynamo-session-id", "x-claude-code-agent-id", "X-Request-Id", "session-id"):
        await asyncio.gather(*(chat(server, [(name, f"{number}" + "é" * 500_000)]) for number in range(4)))


async def send_huge_fields(server: Server) -> None:
    name = "x" * 4_000_000
    for field in ("session_id", "cache_salt", "user", "prompt_cache_key", "request_id"):
        options: dict[str, Any] = {field: name}
        await chat(server, **options)


async def send_metadata(server: Server) -> None:
    await chat(server, vllm_xargs={f"key {number}": "x" * 100 for number in range(50_000)})
    await chat(server, metadata={f"key {number}": "x" * 100 for number in range(50_000)})


async def send_deep_bodies(server: Server) -> None:
    for start in (b'{"messages":', b'{"session_id":', b'{"tools":'):
        await server.ask(CHAT, start + b"[" * 4_000_000)


async def send_many_messages(server: Server) -> None:
    """Send more than the context takes: all are parsed, then refused."""
    await chat(server, messages=_PAIR * 30_000)


async def send_messages_that_fit(server: Server) -> None:
    await ask_all(server, (chat(server, messages=_PAIR * 1_500) for _ in range(3)))


async def send_many_parts(server: Server) -> None:
    parts = [{"type": "text", "text": "x" * 40}] * 80_000
    await chat(server, messages=[{"role": "user", "content": parts}])


async def send_a_huge_message(server: Server) -> None:
    await chat(server, messages=[{"role": "user", "content": "word " * 2_000_000}])


async def send_many_tools(server: Server) -> None:
    for seed in range(3):
        tools = [_make_tool(f"tool_{number}", 8_000) for number in range(512)]
        random.Random(seed).shuffle(tools)
        await chat(server, tools=tools)


async def send_many_calls(server: Server) -> None:
    function = {"name": "look", "arguments": json.dumps({"command": "x" * 400})}
    calls = [{"id": f"call-{number}", "type": "function", "function": function} for number in range(10_000)]
    messages = [*_HELLO, {"role": "assistant", "tool_calls": calls}, *_HELLO]
    await chat(server, messages=messages)


async def send_many_stops(server: Server) -> None:
    await ask_all(server, (complete(server, "one", stop_token_ids=list(range(10_000))) for _ in range(32)))
    await complete(server, "one", stop=[f"{number} {'x' * 400}" for number in range(10_000)])


async def send_many_prompts(server: Server) -> None:
    await complete(server, "one", prompt=[[number % 250] * 4 for number in range(2_000)])


async def ask_for_samples(server: Server) -> None:
    await chat(server, n=512)


async def leave_at_once(server: Server) -> None:
    asked = [asyncio.ensure_future(complete(server, f"leaves-{number}", max_tokens=200)) for number in range(256)]
    await asyncio.sleep(1.0)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await complete(server, "last")


@asynccontextmanager
async def run_router() -> AsyncIterator[str]:
    """Answer as a router that takes its time; give its address."""

    async def answer(_request: web.Request) -> web.Response:
        await asyncio.sleep(0.005)
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def _make_tool(name: str, characters: int) -> dict[str, Any]:
    function = {"name": name, "description": "x" * characters, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


EXPIRY = Attack("10,000 sessions that expire at once", sessions_that_expire, is_ours=True)
ROUTED_EXPIRY = Attack("the same, told to a router (router.url)", sessions_that_expire, is_ours=True)
ATTACKS = (
    Attack("/agentcache/jobs?limit=500, 64 at a time", poll_jobs, is_ours=True),
    Attack("/agentcache/report, 64 at a time", poll_report, is_ours=True),
    Attack("/agentcache/jobs/NAME of 2,000 turns, 64 at a time", poll_one_session, is_ours=True),
    Attack("/agentcache/state and /metrics, 64 at a time", poll_counts),
    Attack("2,000 sessions ended at once", end_sessions, is_ours=True),
    Attack("240 headers of 4,000 characters", send_many_headers),
    Attack("names of 1 MB in headers", send_huge_names),
    Attack("names of 4 MB in the body", send_huge_fields),
    Attack("50,000 extra arguments, 50,000 keys of metadata", send_metadata),
    Attack("bodies of 4,000,000 brackets", send_deep_bodies),
    Attack("a chat of 60,000 messages, refused", send_many_messages),
    Attack("a chat of 3,000 messages, answered", send_messages_that_fit),
    Attack("a message of 80,000 parts", send_many_parts),
    Attack("a message of 10 MB", send_a_huge_message),
    Attack("512 tools of 8,000 characters, in three orders", send_many_tools),
    Attack("a message of 10,000 calls", send_many_calls),
    Attack("10,000 stop_token_ids, 32 at a time; 10,000 stop strings", send_many_stops),
    Attack("2,000 prompts in a request", send_many_prompts),
    Attack("512 samples of a prompt", ask_for_samples),
    Attack("256 clients that leave at once", leave_at_once),
)
