"""Reads what requests say of themselves: the names of their jobs and replies, our front end's marks, dictated replies.

Front ends other than Python's let clients send any marks.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from agentcache.engine.constants import (
    AGENT_ARGUMENT,
    CALLS_ARGUMENT,
    CONTINUES_ARGUMENT,
    EXPECTED_ARGUMENT,
    LEFT_ARGUMENT,
    PARENT_ARGUMENT,
    QUESTIONS_ARGUMENT,
    REPLY_ARGUMENT,
    ROLES_ARGUMENT,
    SENT_ARGUMENT,
    TOOLS_DECLARED_ARGUMENT,
)
from tool_runtime.agent.job import ToolCall
from tool_runtime.learning.job_table import MAX_ID
from tool_runtime.learning.tool_key import ToolKey, tool_keys

if TYPE_CHECKING:
    from agentcache.engine.vllm.types import Request, SamplingParams

Owner = TypeVar("Owner")

# A client's own name that begins so is digested as well: no client can name another's job by its digest.
_DIGEST = "sha256:"


def job_name(session: str, salt: str | None) -> str:
    """Name the job of a session of one tenant: tenants, told apart by their cache salt, do not share jobs."""
    return shorten(session) if salt is None else _digest(f"{len(salt)} {salt} {session}")


def shorten(name: str) -> str:
    """Shorten a name to one that the job table keeps as it is: a longer one it would shorten each time it is told."""
    if len(name) <= MAX_ID and not name.startswith(_DIGEST):
        return name
    # The text of a tenant's job begins with a number.
    return _digest(f"- {name}")


def tenant_name(salt: str | None) -> str | None:
    """Name the tenant that has this cache salt, None of requests without one. A salt may have any length."""
    return None if salt is None else shorten(salt)


def _digest(text: str) -> str:
    return (_DIGEST + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())[:MAX_ID]


# What the engine core cannot see in tokens: whose messages a prompt is made of.
ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
# Of so many messages, and no more, the front end tells who wrote them and what they say.
MAX_MESSAGES = 4096


class Questions(NamedTuple):
    """Digests of what a prompt asks, and of what the last reply in it was asked; None where there is no such message.

    They are of all messages of people and results of tools up to there. System messages and replies are left out:
    clients and templates write them anew. A reply that ends the prompt was begun by the client and answers nothing.
    """

    asked: str | None = None
    answered: str | None = None


def read_roles(request: Request) -> str:
    """Read the letters of the prompt's messages; empty if the API server did not send them."""
    roles = read_mark(request.sampling_params, ROLES_ARGUMENT)
    is_told = isinstance(roles, str) and len(roles) <= MAX_MESSAGES and ROLES.keys() >= set(roles)
    return roles if is_told else ""


def has_reply(roles: str) -> bool:
    """Tell whether messages hold an earlier reply. One that ends them is what the client has begun for the model."""
    return "a" in roles.rstrip("a")


def has_history(request: Request) -> bool:
    """Tell whether the prompt holds an earlier reply, so that it goes on from some turn."""
    return has_reply(read_roles(request))


def may_call_tools(request: Request) -> bool:
    """Tell whether the reply may call tools: not where the API server told what was sent, and no tools were."""
    told, declared = (read_mark(request.sampling_params, name) for name in (ROLES_ARGUMENT, TOOLS_DECLARED_ARGUMENT))
    return told is None or declared is not None


def read_questions(request: Request) -> Questions:
    """Read digests of what the prompt asks; both None if the API server did not send them."""
    told = read_mark(request.sampling_params, QUESTIONS_ARGUMENT)
    is_known = isinstance(told, list) and len(told) == len(Questions())
    return Questions(*(each if isinstance(each, str) else None for each in told)) if is_known else Questions()


class SentPrompt(NamedTuple):
    """As digests, in the forms of `front_end/sent_digests.py`; `messages` None where no API server told any of them.

    `adapter` is the name and path of the LoRA adapter. With `continues` the server puts what it has stored between the
    first message, the instructions, and the others.
    """

    adapter: tuple[str, str] | None
    continues: bool = False
    messages: str | None = None
    tools: str = ""
    options: str = ""

    def texts(self) -> tuple[str, ...]:
        """Return all texts, of which clients decide how long they are."""
        return *(self.adapter or ()), self.messages or "", self.tools, self.options


def read_sent(request: Request) -> SentPrompt:
    """Read what the API server told of a request."""
    lora = request.lora_request
    adapter = (lora.lora_name, lora.lora_path) if lora is not None else None
    sent = read_mark(request.sampling_params, SENT_ARGUMENT)
    names = ("messages", "tools", "options")
    if not isinstance(sent, dict) or not all(isinstance(sent.get(name), str) for name in names):
        return SentPrompt(adapter)
    return SentPrompt(
        adapter, read_mark(request.sampling_params, CONTINUES_ARGUMENT) is not None, *(sent[name] for name in names)
    )


def read_agent(request: Request) -> str | None:
    """Read which agent of its session has sent the request; None where its client does not say."""
    agent = read_mark(request.sampling_params, AGENT_ARGUMENT)
    return agent if isinstance(agent, str) else None


def read_parent(request: Request) -> str | None:
    """Read which agent of its session has begun the one that asks, if its client says so."""
    parent = read_mark(request.sampling_params, PARENT_ARGUMENT)
    return parent if isinstance(parent, str) else None


class Expected(NamedTuple):
    """What a client expects of a request, in vllm-router's words; None where it does not say.

    A larger `priority` is more urgent. Deadlines count from its arrival, retention from its end.
    """

    blocks_parent: bool | None = None
    expected_resume: bool | None = None
    kv_retention_ttl_seconds: float | None = None
    deadline_seconds: float | None = None
    expected_output_length: int | None = None
    priority: int = 0

    @property
    def hurry_s(self) -> float:
        """The seconds by which the request's job counts as older than it is, at most ten either way."""
        late_s = MAX_HURRY_S if self.deadline_seconds is None else self.deadline_seconds
        return max(-MAX_HURRY_S, min(MAX_HURRY_S, self.priority + max(0.0, MAX_HURRY_S - late_s)))


# Beside the seniority of jobs and the patience of requests, which no client changes.
MAX_HURRY_S = 10.0
# Of tokens, seconds and priorities, either way: what is more is nonsense, or would not fit a float.
MOST_EXPECTED = 10**6
_FLAGS, _SECONDS = ("blocks_parent", "expected_resume"), ("kv_retention_ttl_seconds", "deadline_seconds")


def _may_be_told(name: object, value: Any) -> bool:
    kinds = (bool,) if name in _FLAGS else (int, float) if name in _SECONDS else (int,)
    least = -MOST_EXPECTED if name == "priority" else 0
    return name in Expected._fields and type(value) in kinds and least <= value <= MOST_EXPECTED


def tells_more(request: Request) -> bool:
    """Tell whether a request names a sub-agent or tells what to expect of it."""
    names = AGENT_ARGUMENT, EXPECTED_ARGUMENT
    return request.priority != 0 or any(read_mark(request.sampling_params, name) is not None for name in names)


def read_expected(request: Request) -> Expected:
    """Read what the API server told, and vLLM's own priority, of which a smaller one is more urgent."""
    told = read_mark(request.sampling_params, EXPECTED_ARGUMENT)
    known = Expected(**told) if isinstance(told, dict) and all(starmap(_may_be_told, told.items())) else Expected()
    return known if known.priority else known._replace(priority=-request.priority)


def read_predecessor(request: Request) -> str | None:
    """Read the id of the response that the request says it goes on from."""
    response = read_mark(request.sampling_params, CONTINUES_ARGUMENT)
    return response if isinstance(response, str) else None


def read_left(request: Request) -> int:
    """Read how many tokens of the prompt the engine that the job has just left has cached; 0 if it has left none."""
    tokens = read_mark(request.sampling_params, LEFT_ARGUMENT)
    return tokens if type(tokens) is int and tokens > 0 else 0


def is_search_step(request: Request) -> bool:
    """Tell whether the request is one step of a search that picks each next token itself, and so ends no turn.

    vLLM makes its beams so, online and offline, and the labels that it chooses among. A request that a connector has
    other plans with is a whole one, of which another engine decodes the rest.
    """
    params = request.sampling_params
    if params is None or params.max_tokens != 1 or request.kv_transfer_params:
        return False
    return params.logprobs is not None or params.logprob_token_ids is not None


def find_forced_reply(params: SamplingParams | None) -> Any:
    """Find the value of REPLY_ARGUMENT; None where the model is to reply.

    Whether a client may dictate is checked by this when its request comes in, so what is dictated with a reply is
    read by nothing else.
    """
    return read_mark(params, REPLY_ARGUMENT)


def find_forced_calls(params: SamplingParams | None) -> Any:
    """Find the value of CALLS_ARGUMENT; None where no reply is dictated with it."""
    return read_mark(params, CALLS_ARGUMENT) if find_forced_reply(params) is not None else None


def read_mark(params: SamplingParams | None, name: str) -> Any:
    """Read a mark; None if there is none."""
    return ((params and params.extra_args) or {}).get(name)


def write_forced_calls(calls: Iterable[ToolCall]) -> str:
    """Write the calls as JSON text."""
    return json.dumps([[call.name, call.arguments] for call in calls])


def read_forced_calls(text: object) -> list[ToolKey] | None:
    """Read CALLS_ARGUMENT, JSON text `[[tool, arguments as JSON text], ...]`; None when it is not that."""
    try:
        calls = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return None
    return tool_keys((name, arguments) for name, arguments in calls)


def _is_call(call: object) -> bool:
    return isinstance(call, list) and len(call) == 2 and all(isinstance(part, str) for part in call)


def reusable_hashes(request: Request, block_size: int) -> Sequence[bytes]:
    """Return the hashes of the blocks that the request can hit, or leaves to others: without its last token's KV."""
    return request.block_hashes[: (request.num_tokens - 1) // block_size]


_MAX_REPLIES = 10_000
_RESPONSE = "resp_"


class ReplyIds(Generic[Owner]):
    """The latest replies of finished requests."""

    def __init__(self) -> None:
        # With the tenant. A client may have chosen the id: it is shortened.
        self._owners: OrderedDict[str, tuple[Owner, str | None]] = OrderedDict()

    def note(self, request_id: str, salt: str | None, owner: Owner) -> None:
        """Note that a request has finished, under the id that the engine has for it."""
        if reply := _find_reply(request_id):
            self._owners[shorten(reply)] = owner, tenant_name(salt)
            if len(self._owners) > _MAX_REPLIES:
                self._owners.popitem(last=False)

    def find(self, reply: str, tenants: Collection[str | None] | None) -> Owner | None:
        """Find whose a reply was, if it was one of these tenants', given by their cache salts, or of any."""
        if (found := self._owners.get(shorten(reply))) is None:
            return None
        owner, tenant = found
        return owner if tenants is None or tenant in map(tenant_name, tenants) else None


def client_id(request_id: str) -> str:
    """Return the id that the client gets of a request, shortened; the engine's own where none is told to clients."""
    return shorten(_find_reply(request_id) or request_id)


def _find_reply(request_id: str) -> str | None:
    """Find the id that the client gets. The engine adds a suffix to it, the server a number to that of a response."""
    reply, dash, _ = request_id.rpartition("-")
    if not dash:
        return None
    if not reply.startswith(_RESPONSE):
        return reply
    response, _, number = reply.rpartition("_")
    return response if number.isdecimal() and response.startswith(_RESPONSE) else None
