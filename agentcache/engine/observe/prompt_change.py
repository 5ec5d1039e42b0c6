"""Compares a prompt with the turn that it goes on from: what its client, or the server, has changed."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Literal

from cachetools import FIFOCache

from agentcache.engine.history_change import MESSAGE, cut, find_history_change
from agentcache.engine.marks import MAX_MESSAGES, ROLES, SentPrompt, read_roles, read_sent
from agentcache.engine.request_state import LEAST_TURN_BYTES, MAX_TURN_BYTES, Overlap
from agentcache.engine.views import ChangeCause, ChangeText, ChangeView
from agentcache.engine.vllm.types import Request, SamplingParams

# Characters of a tool in a client's digests, and of the tool's name.
_TOOL, _NAME = 16, 8
# Enough for a date and a time of day in digits of a token each.
_TOKENS_AROUND = 16


class PromptChanges:
    """Explains where the prompt of a job that is back leaves the turn before, in whole blocks of `block_size` tokens.

    Where it `shows_text`, it keeps the tokens of turns whose jobs are away: 64 MB at most; the oldest leave first.
    """

    def __init__(self, block_size: int, *, shows_text: bool, max_bytes: int = MAX_TURN_BYTES) -> None:
        self.shows_text = shows_text
        self._block_size = block_size
        self._tokens: FIFOCache[str, array[int]] = FIFOCache(max_bytes, getsizeof=_count_bytes)

    def note(self, request: Request, turn: str, before: str | None) -> None:
        """Keep the tokens of a request that has finished as this turn, in place of the turn `before`."""
        self.forget(filter(None, [before]))
        tokens = array("i", request.all_token_ids)
        if _count_bytes(tokens) <= self._tokens.maxsize:
            self._tokens[turn] = tokens

    def forget(self, turns: Iterable[str]) -> None:
        """Forget the tokens of turns that nothing will go on from."""
        for turn in turns:
            self._tokens.pop(turn, None)

    def clear(self) -> None:
        """Forget the tokens of all turns."""
        self._tokens.clear()

    def explain(self, request: Request, overlap: Overlap, before: str | None) -> ChangeView:
        """Explain why the prompt leaves the turn `before`, with which it has the `overlap`."""
        prompt, size, at_token = request.prompt_token_ids or [], self._block_size, overlap.diverged_at
        assert at_token is not None
        in_reply = overlap.repeats_reply(prompt, size) is False
        letter = "a" if in_reply else _find_role(request, at_token, at_token + size)
        now = read_sent(request)
        return ChangeView(
            at_token=at_token,
            cause=_find_cause(overlap.sent or SentPrompt(now.adapter), now, letter, in_reply=in_reply),
            left_tokens=overlap.abandoned_tokens,
            role=ROLES[letter] if letter is not None else None,
            text=cut_change(self._tokens.get(before or "", ()), prompt, at_token, size),
        )


def _count_bytes(tokens: array[int]) -> int:
    return max(len(tokens) * tokens.itemsize, LEAST_TURN_BYTES)


def cut_change(last: Sequence[int], prompt: Sequence[int], at_token: int, block_size: int) -> ChangeText | None:
    """Cut out the tokens around the place where the prompt leaves the last turn.

    Args:
        last: The tokens of that turn; empty if they were not kept.
        prompt: Those of the prompt, the same up to `at_token`.
        at_token: Where the first block begins that is not the same.
        block_size: Tokens of a block.

    Returns:
        None also where the block has the same tokens: then what they stand for, such as an image, is another.
    """
    shorter = min(len(last), len(prompt))
    end = min(at_token + block_size, shorter)
    place = next((place for place in range(at_token, end) if last[place] != prompt[place]), end)
    if not last or (place == end and end != shorter):
        return None
    behind = slice(place, place + _TOKENS_AROUND)
    return ChangeText(
        at_token=place,
        before=tuple(prompt[max(0, place - _TOKENS_AROUND) : place]),
        was=tuple(last[behind]),
        now=tuple(prompt[behind]),
    )


def _find_cause(before: SentPrompt, now: SentPrompt, letter: str | None, *, in_reply: bool) -> ChangeCause:
    """Find the cause of a change in a message of this role, by what the client sent: what it repeated is not its own.

    Templates show tools in the first message or before it, so other tools explain a change there.
    """
    if before.adapter != now.adapter:
        return "adapter changed"
    if in_reply:
        return "rendered anew" if _is_reply_hidden(before, now) else "reply not repeated"
    changed = _find_message_change(before, now)
    tools = _find_tool_change(before, now)
    if tools is not None and (letter in ("s", None) or changed == "none"):
        return tools
    if changed == "none":
        # All messages and tools were repeated.
        return "options changed" if before.options != now.options else "rendered anew"
    if changed != "unknown" or letter is None:
        return changed
    return "system message changed" if letter == "s" else "history changed"


def _find_tool_change(before: SentPrompt, now: SentPrompt) -> ChangeCause | None:
    """Find what is another in the declared tools; None if nothing is, or that is not known."""
    if before.messages is None or now.messages is None or before.tools == now.tools:
        return None
    was, are = cut(before.tools, _TOOL), cut(now.tools, _TOOL)
    were_named, are_named = ([tool[:_NAME] for tool in tools] for tools in (was, are))
    if sorted(were_named) == sorted(are_named):
        return "tools reordered" if sorted(was) == sorted(are) else "tool text changed"
    return "tools left out" if set(are_named) < set(were_named) else "tools changed"


def _find_message_change(before: SentPrompt, now: SentPrompt) -> ChangeCause | Literal["none", "unknown"]:
    """Find what is another in the messages of the turn before."""
    if before.messages is None or now.messages is None or (before.continues and not now.continues):
        return "unknown"
    was, are = cut(before.messages, MESSAGE), cut(now.messages, MESSAGE)
    if now.continues:
        # The client says again its instructions alone.
        was, are = was[:1], are[:1]
    repeated = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(was, are, strict=False)))
    if repeated == min(len(was), MAX_MESSAGES):
        return "none"
    # A system message further back is one among others: to leave a reminder out later is to edit the history.
    begins = {message[0] for message in was[:repeated]} <= {"s"}
    is_system = "s" in (was[repeated][0], *(message[0] for message in are[repeated : repeated + 1]))
    if begins and is_system:
        return "system message changed"
    return "history changed" if now.continues else find_history_change(was, are)


def _is_reply_hidden(before: SentPrompt, now: SentPrompt) -> bool:
    """Tell whether the server renders the last reply anew: it has stored it, or the template hides its reasoning.

    Templates hide the reasoning before the latest question. That the client left it out is its own change.
    """
    if now.continues:
        return True
    if before.messages is None or now.messages is None:
        return False
    letters = [message[0] for message in cut(now.messages, MESSAGE)[len(before.messages) // MESSAGE :]]
    reply = [*takewhile(lambda letter: letter in "ar", letters)]
    return "r" in reply and "u" in letters[len(reply) :]


def _find_role(request: Request, start: int, end: int) -> str | None:
    """Find the letter of the message that has all tokens from `start` to `end`, by counting the ends of messages.

    None where a template does not end each message by an end-of-turn token, or the tokens are of two messages.
    """
    tokens, params = request.prompt_token_ids, request.sampling_params
    if tokens is None or params is None:
        return None
    arrangements = _arrange(read_roles(request))
    for end_of_turn, messages in _count_ends(tokens, params):
        if (letters := arrangements.get(messages)) is not None:
            before = tokens[:start].count(end_of_turn)
            # The message's own end may be the last of these tokens.
            is_one = before < len(letters) and end_of_turn not in tokens[start : end - 1]
            return letters[before] if is_one else None
    return None


def _count_ends(tokens: Sequence[int], params: SamplingParams) -> Iterator[tuple[int, int]]:
    """Count the tokens of a prompt that may end a turn, the likeliest first, in O(prompt) however many may.

    With ignore_eos vLLM has the end of turn among the others alone.
    """
    first = params.eos_token_id
    if first is not None:
        yield first, tokens.count(first)
    others = Counter(filter(params.all_stop_token_ids.__contains__, tokens))
    yield from sorted((token, count) for token, count in others.items() if token != first)


def _arrange(roles: str) -> dict[int, str]:
    """Arrange the letters as templates do, by their number: some merge tools' results, some add a system message."""
    merged = "".join(letter for place, letter in enumerate(roles) if letter != "t" or roles[place - 1 : place] != "t")
    likeliest_last = (f"s{merged}", f"s{roles}", merged, roles)
    return {len(letters): letters for letters in likeliest_last if letters}
