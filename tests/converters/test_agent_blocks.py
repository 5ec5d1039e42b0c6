from __future__ import annotations

from itertools import pairwise

from converters.agent_blocks import BlockNumbers, Thread
from converters.agent_trace_file import Request
from hypothesis import given
from hypothesis import strategies as st
from made_agent_trace import BLOCK, make_request


def _thread(*requests, tool=0, system=0):
    return Thread(tool, system, [Request.model_validate(request) for request in requests])


def _number(numbers, *threads):
    return numbers.number(threads, BLOCK)


_PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 30), max_size=8, unique=True), st.integers(0, BLOCK - 1)), min_size=1, max_size=6
)


@given(first=_PROMPTS, second=_PROMPTS, tool=st.integers(0, 300), system=st.integers(0, 300))
def test_full_blocks_are_equal_just_where_a_session_s_are(first, second, tool, system):
    threads = [
        _thread(*(make_request(0, blocks, tail) for blocks, tail in prompts), tool=tool, system=system)
        for prompts in (first, second)
    ]
    numbered = _number(BlockNumbers(), *threads)
    pairs = {
        (block, number)
        for thread, prompts in zip(threads, numbered, strict=True)
        for request, prompt in zip(thread.requests, prompts, strict=True)
        for block, number in zip(request.hash_ids, prompt, strict=False)
    }
    assert len(pairs) == len({block for block, _ in pairs}) == len({number for _, number in pairs})


@given(prompts=_PROMPTS)
def test_blocks_cover_the_tokens(prompts):
    thread = _thread(*(make_request(0, blocks, tail) for blocks, tail in prompts))
    [numbered] = _number(BlockNumbers(), thread)
    for request, blocks in zip(thread.requests, numbered, strict=True):
        assert len(blocks) == max(1, -(-request.prompt_tokens // BLOCK))


@given(lengths=st.lists(st.integers(1, 8 * BLOCK), min_size=2, max_size=6), data=st.data())
def test_a_prompt_that_grows_keeps_all_its_blocks_tail_too(lengths, data):
    lengths = sorted(lengths)
    base = data.draw(st.integers(0, 1000))
    thread = _thread(*(make_request(0, range(base, base + n // BLOCK), n % BLOCK) for n in lengths))
    [numbered] = _number(BlockNumbers(), thread)
    for before, after in pairwise(numbered):
        assert after[: len(before)] == before


def test_a_tail_that_no_prompt_continues_is_a_block_of_its_own():
    thread = _thread(make_request(0, [1, 2], 5), make_request(1, [1, 9, 10], 5), make_request(2, [1, 9, 10]))
    [(first, second, third)] = _number(BlockNumbers(), thread)
    assert first[0] == second[0]
    assert second[:3] == third
    assert len({*first, *second}) == 6


def test_heads_are_shared_while_tools_and_system_sizes_are_equal():
    numbers = BlockNumbers()
    prompt = make_request(0, [1, 2, 3, 4, 5])
    heads = [(128, 128), (128, 128), (128, 64), (192, 64)]
    a, b, c, d = (_number(numbers, _thread(prompt, tool=tool, system=system))[0][0] for tool, system in heads)
    assert a[:4] == b[:4]
    assert a[4] != b[4]
    assert c[:2] == a[:2]
    assert not {*c[2:]} & {*a}
    assert not {*d} & {*a, *b, *c}


def test_a_block_that_reaches_past_the_head_is_not_shared():
    numbers = BlockNumbers()
    (a,), (b,) = (_number(numbers, _thread(make_request(0, [1, 2]), tool=100))[0] for _ in range(2))
    assert a[0] == b[0]
    assert a[1] != b[1]


def test_blocks_a_session_tells_apart_stay_apart_at_equal_sizes():
    parent = _thread(make_request(0, [1, 2]), tool=128)
    sub_agent = _thread(make_request(0, [1, 7]), tool=128)
    (own,), (other,) = _number(BlockNumbers(), parent, sub_agent)
    assert own[0] == other[0]
    assert own[1] != other[1]


def test_sessions_share_nothing_but_heads():
    numbers = BlockNumbers()
    (a,), (b,) = (_number(numbers, _thread(make_request(0, [1, 2], 3)))[0] for _ in range(2))
    assert not {*a} & {*b}
