"""What a request is known by: its hashes, its extra arguments, and what a server makes them of."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from lone_scheduler import BLOCK_SIZE
from starlette.datastructures import Headers
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.middleware import authenticate
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    get_request_block_hasher,
    init_none_hash,
    make_block_hash_with_group_id,
)
from vllm.v1.request import Request
from vllm_internals import find_session

TOKENS = list(range(100, 100 + 3 * BLOCK_SIZE + 5))


def make_request(tokens: list[int], **options: Any) -> Request:
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    params = SamplingParams(extra_args={"some": "value"})
    hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
    return Request("one", tokens, params, None, block_hasher=hasher, **options)


def test_every_full_block_has_a_hash_or_prefixes_are_missed() -> None:
    # Without a drafter no hash waits for a token behind its block.
    assert [len(make_request(TOKENS[:count]).block_hashes) for count in (15, 16, 47, 48)] == [0, 1, 2, 3]


def test_a_hash_stands_for_all_before_it_or_jobs_mix() -> None:
    other = [1, *TOKENS[1:]]
    assert not set(make_request(TOKENS).block_hashes) & set(make_request(other).block_hashes)
    longer = make_request([*TOKENS[: 2 * BLOCK_SIZE], *range(30)])
    assert longer.block_hashes[:2] == make_request(TOKENS).block_hashes[:2]


def test_a_salt_changes_every_hash_or_tenants_share_jobs() -> None:
    salted = [make_request(TOKENS, cache_salt=salt).block_hashes for salt in (None, "a", "b")]
    assert len({block_hash for hashes in salted for block_hash in hashes}) == 9


def test_hashes_grow_with_the_reply_or_turns_are_lost() -> None:
    request = make_request(TOKENS)
    request.append_output_token_ids(list(range(BLOCK_SIZE - 5)))
    assert len(request.block_hashes) == 4


def test_a_group_is_a_suffix_of_a_key_or_keys_are_wrong() -> None:
    keys = [make_block_hash_with_group_id(BlockHash(b"hash"), group) for group in (0, 1)]
    assert all(key.startswith(b"hash") and len(key) == len(b"hash") + 4 for key in keys)
    assert keys[0] != keys[1]


def test_extra_arguments_reach_the_engine_or_marks_are_lost() -> None:
    request = make_request(TOKENS)
    assert request.sampling_params is not None
    assert request.sampling_params.extra_args == {"some": "value"}


def test_a_client_s_arguments_are_extra_or_replies_are_free() -> None:
    chat = ChatCompletionRequest(messages=[{"role": "user", "content": "?"}], vllm_xargs={"some": "value"})
    params = chat.to_sampling_params(4, {})
    assert (params.max_tokens, (params.extra_args or {})["some"]) == (4, "value")


def test_a_body_names_its_session_or_jobs_are_not_found() -> None:
    chat = ChatCompletionRequest(messages=[{"role": "user", "content": "?"}], session_id="mine")
    raw = SimpleNamespace(headers={})
    assert find_session(chat, raw) == "mine"


@pytest.mark.parametrize(
    "module",
    [
        "anthropic.api_router",
        "openai.chat_completion.api_router",
        "openai.completion.api_router",
        "openai.responses.api_router",
        "scale_out.token_in_token_out.api_router",
    ],
)
def test_json_routes_depend_on_one_check_or_bodies_are_unread(module: str) -> None:
    routes = [route for route in import_module(f"vllm.entrypoints.{module}").router.routes if "POST" in route.methods]
    asking = [route for route in routes if route.body_field is not None]
    assert asking
    for route in asking:
        assert [each.dependency for each in route.dependencies] == [validate_json_request], route.path


def test_a_bearer_s_key_is_known_or_routes_stand_open() -> None:
    middleware = authenticate.AuthenticationMiddleware(Mock(), ["key"])
    given = ("Bearer key", "Bearer other", "key", "")
    assert [middleware.verify_token(Headers({"Authorization": each})) for each in given] == [True, False, False, False]
    assert not middleware.verify_token(Headers({}))
