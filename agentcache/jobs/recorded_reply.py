"""Encodes recorded replies as the token ids that the model would have written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from agentcache.errors import InputError
from agentcache.jobs.tokenizer import Tokenizer
from tool_runtime.agent.job import Job, Message, Turn

_QUESTION: Message = {"role": "user", "content": "?"}


class ReplyEncoder:
    """Finds a reply's ids with the chat template itself, so that any template and tool-call format works.

    render([question], for_reply)        prompt
    render([question, reply])            prompt | reply | end of turn | rest
                                                 ^^^^^^^^^^^^^^^^^^^ forced
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._prompt = tokenizer.render([_QUESTION], for_reply=True)
        # Two replies that share no token have only what the template puts behind every reply in common.
        one, other = (self._behind_prompt(Turn(text)) for text in ("x", "7"))
        self._tail = _common_suffix(one, other)

    def encode(self, turn: Turn) -> list[int]:
        """Return the reply's ids with its end-of-turn token, if the template has one.

        Raises InputError for a template that does not let a reply be forced.
        """
        behind = self._behind_prompt(turn)
        end = len(behind) - len(self._tail)
        if behind[end:] != self._tail:
            raise InputError("the model's chat template ends its replies in different ways; replay with another model")
        return behind[:end] + self._tail[:1]

    def _behind_prompt(self, turn: Turn) -> list[int]:
        whole = self._tokenizer.render([_QUESTION, assistant_message(turn)], for_reply=False)
        if whole[: len(self._prompt)] != self._prompt:
            raise InputError(
                "the model's chat template does not put a reply where the generation prompt ends, "
                "so recorded replies cannot be forced; replay with another model"
            )
        return whole[len(self._prompt) :]


def assistant_message(turn: Turn) -> Message:
    """Return the reply as a message of the API, with ids of our own for calls without one."""
    if not turn.tool_calls:
        return {"role": "assistant", "content": turn.content}
    calls = [
        {
            "id": call.id or f"call-{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(turn.tool_calls)
    ]
    return {"role": "assistant", "content": turn.content, "tool_calls": calls}


def count_tokens(job: Job, tokenizer: Tokenizer) -> int:
    """Count the tokens of the job's last prompt and reply together."""
    messages = list(job.messages)
    for turn in job.turns:
        messages.append(assistant_message(turn))
        messages += [
            {"role": "tool", "tool_call_id": f"call-{number}", "content": result.content}
            for number, result in enumerate(turn.results)
        ]
        messages += turn.said
    return len(tokenizer.render(messages, job.tools, for_reply=False))


def find_divergence(known: Sequence[int], prompt: Sequence[int]) -> int | None:
    """Return the first position at which `prompt` differs from `known`; None if it extends it."""
    if tuple(prompt[: len(known)]) == tuple(known):
        return None
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known, prompt, strict=False)))


def _common_suffix(one: Sequence[int], other: Sequence[int]) -> list[int]:
    pairs = zip(reversed(one), reversed(other), strict=False)
    suffix = [left for left, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return suffix[::-1]
