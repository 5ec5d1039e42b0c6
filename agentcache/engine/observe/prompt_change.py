"""Finds what has changed in a prompt that leaves the last turn of its job, and keeps the tokens around that place.

Tokens are kept only for servers that may show text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from agentcache.engine.jobs.bounded_table import MAX_BYTES, BoundedTable
from agentcache.engine.jobs.told_prompt import (
    ROLES,
    SentPrompt,
    find_message_change,
    find_other_change,
    find_tool_change,
    is_reply_hidden,
    read_roles,
    read_sent,
)
from agentcache.engine.jobs.turn_chains import Overlap
from agentcache.engine.observe.views import ChangeCause, ChangeTokens, ChangeView
from agentcache.engine.vllm.types import Request, SamplingParams

# Enough for a date and a time of day in digits of a token each.
_TOKENS_AROUND = 16


class TurnTokens:
    """The tokens of turns whose jobs are away, 64 MB of them at most; the oldest turns leave first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._turns: BoundedTable[tuple[str, array[int]]] = BoundedTable(max_bytes, self._leave)
        self._turns_of: dict[str, set[str]] = {}

    def note(self, turn: str, job: str, tokens: Sequence[int]) -> None:
        """Keep the tokens of a turn of the job: its prompt and its reply."""
        self.take(turn)
        kept = array("i", tokens)
        self._turns_of.setdefault(job, set()).add(turn)
        self._turns.put(turn, (job, kept), len(kept) * kept.itemsize)

    def take(self, turn: str) -> Sequence[int]:
        """Return a turn's tokens, and keep them no longer; empty if they are not here."""
        self._leave(turn)
        known = self._turns.pop(turn)
        return () if known is None else known[1]

    def take_change(
        self, turn: str, prompt: Sequence[int], at_token: int | None, block_size: int
    ) -> ChangeTokens | None:
        """Return what a prompt that leaves the turn at `at_token` has changed, and keep the turn's tokens no longer.

        None where that is not known, or the prompt leaves it nowhere.
        """
        last = self.take(turn)
        return None if at_token is None else cut_change(last, prompt, at_token, block_size)

    def forget(self, job: str) -> None:
        """Forget the turns of a job that is over."""
        for turn in tuple(self._turns_of.get(job, ())):
            self.take(turn)

    def clear(self) -> None:
        """Forget all turns."""
        self._turns.clear()
        self._turns_of.clear()

    def _leave(self, turn: str) -> None:
        if (known := self._turns.get(turn)) is not None:
            of_job = self._turns_of[known[0]]
            of_job.discard(turn)
            if not of_job:
                del self._turns_of[known[0]]


def cut_change(last: Sequence[int], prompt: Sequence[int], at_token: int, block_size: int) -> ChangeTokens | None:
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
    return ChangeTokens(
        at_token=place,
        before=tuple(prompt[max(0, place - _TOKENS_AROUND) : place]),
        was=tuple(last[behind]),
        now=tuple(prompt[behind]),
    )


class PromptChanges:
    """Looks at each prompt of a job that has come back, in whole blocks of `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        # Of the job that came back last, where that could be told: a new job's client is most likely to do the same.
        self._repeats_reply = True

    def find(self, request: Request, overlap: Overlap) -> tuple[ChangeView | None, bool]:
        """Return what the prompt has changed, and whether its job's prompts are likely to have the replies before them.

        `overlap` is with the turn that the prompt goes on from.
        """
        in_reply = _is_in_reply(request, overlap, self._block_size)
        change = _describe_change(request, overlap, self._block_size, in_reply=in_reply)
        repeated = _repeats_reply(overlap, self._block_size, in_reply=in_reply)
        if repeated is not None:
            self._repeats_reply = repeated
        return change, self._repeats_reply


def _is_in_reply(request: Request, overlap: Overlap, block_size: int) -> bool:
    """Tell whether the prompt leaves the turn that it goes on from behind all of that one's messages."""
    if overlap.diverged_at is None or overlap.end is None:
        return False
    return overlap.end.is_in(request.prompt_token_ids or [], overlap.diverged_at // block_size, block_size)


def _describe_change(request: Request, overlap: Overlap, block_size: int, *, in_reply: bool) -> ChangeView | None:
    """Describe where and why the prompt leaves the turn that it goes on from; None where it does not.

    The place is known in whole blocks, from the one of `diverged_at` on.
    """
    at_token = overlap.diverged_at
    if at_token is None:
        return None
    letter = "a" if in_reply else _find_role(request, at_token, at_token + block_size)
    return ChangeView(
        at_token=at_token,
        cause=_find_cause(overlap.sent, read_sent(request), letter, in_reply=in_reply),
        role=ROLES[letter] if letter is not None else None,
        text=overlap.text,
    )


def _repeats_reply(overlap: Overlap, block_size: int, *, in_reply: bool) -> bool | None:
    """Tell whether the prompt has the reply of the turn that it goes on from; None where no full block tells."""
    if overlap.diverged_at is not None:
        return False if in_reply else None
    if overlap.end is None or overlap.shared_tokens <= overlap.end.blocks * block_size:
        return None
    return True


def _find_cause(before: SentPrompt | None, now: SentPrompt, letter: str | None, *, in_reply: bool) -> ChangeCause:
    """Find the cause of a change in a message of this role, by what the client sent: what it repeated is not its own.

    Templates show tools in the first message or before it, so other tools explain a change there.
    """
    before = before or SentPrompt(now.adapter)
    if before.adapter != now.adapter:
        return "adapter changed"
    if in_reply:
        return "rendered anew" if is_reply_hidden(before, now) else "reply not repeated"
    changed = find_message_change(before, now)
    tools = find_tool_change(before, now)
    if tools is not None and (letter in ("s", None) or changed == "none"):
        return tools
    if changed == "none":
        return find_other_change(before, now)
    if changed != "unknown" or letter is None:
        return changed
    return "system message changed" if letter == "s" else "history changed"


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
