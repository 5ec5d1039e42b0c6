"""Stop tokens that a client lists: the roles of changed messages are found at the cost of the prompt alone."""

from __future__ import annotations

import time

import pytest
from vllm import SamplingParams
from vllm.v1.request import Request

from agentcache.engine.constants import ROLES_ARGUMENT
from agentcache.engine.observe.prompt_change import PromptChanges
from agentcache.engine.request_state import Overlap

BLOCK, EOS, FIRST_STOP = 4, 2, 1000


def make_request(tokens: list[int], *, stops: int = 0, eos: int | None = EOS, roles: str = "sua") -> Request:
    params = SamplingParams(
        max_tokens=1,
        stop_token_ids=list(range(FIRST_STOP, FIRST_STOP + stops)),
        extra_args={ROLES_ARGUMENT: roles},
    )
    params.update_from_generation_config({}, eos)
    return Request("1", tokens, params, None)


def find_role(request: Request, at_token: int) -> str | None:
    changes = PromptChanges(BLOCK, shows_text=False)
    return changes.explain(request, Overlap(at_token, at_token, BLOCK), None).role


def message(token: int, end: int) -> list[int]:
    return [token] * (BLOCK - 1) + [end]


def test_ten_thousand_stop_tokens_cost_no_more_than_the_prompt() -> None:
    prompt = [place % 900 for place in range(100_000)]
    many, one = make_request(prompt, stops=10_000, roles="su" * 2000), make_request(prompt, stops=1, roles="su" * 2000)
    spent_s = []
    for request in (one, many):
        began_s = time.process_time()
        find_role(request, 64)
        spent_s.append(time.process_time() - began_s)
    # Counting each in the whole prompt takes 1,000 times as long.
    assert spent_s[1] < 50 * max(spent_s[0], 0.001)


@pytest.mark.parametrize(
    ("end", "eos", "role"),
    [
        (EOS, EOS, "user"),
        # Of the other stop tokens the one counts that ends as many messages as there are.
        (FIRST_STOP + 7, EOS, "user"),
        (FIRST_STOP + 7, None, "user"),
        # None of them ends messages.
        (999, EOS, None),
    ],
)
def test_the_stop_token_that_ends_messages_tells_roles(end: int, eos: int | None, role: str | None) -> None:
    prompt = [*message(5, end), *message(6, end), *message(7, end), FIRST_STOP]
    assert find_role(make_request(prompt, stops=10, eos=eos), BLOCK) == role


def test_a_template_s_own_system_message_is_counted_first() -> None:
    # Two tool results are one message there.
    prompt = [token for place in range(4) for token in message(5 + place, EOS)]
    request = make_request(prompt, roles="uatt")
    assert [find_role(request, place * BLOCK) for place in range(4)] == ["user", "assistant", "tool", "tool"]
    request = make_request(prompt, roles="uattu")
    assert [find_role(request, place * BLOCK) for place in range(4)] == ["user", "assistant", "tool", "user"]
    request = make_request(prompt, roles="uat")
    assert [find_role(request, place * BLOCK) for place in range(4)] == ["system", "user", "assistant", "tool"]
