from __future__ import annotations

from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.replies.ended_reply import MAX_STOP_TOKENS, StopStrings
from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.scheduler import AgentScheduler

STOP = "Observation:"
REPLY = "Thought: I should look.\nObservation: it"


@pytest.fixture(scope="module")
def tokenizer(tiny_model_path: str) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_path)


@pytest.fixture(scope="module")
def stop_strings(tiny_model_path: str) -> StopStrings:
    return StopStrings(make_config(tiny_model_path, None).model_config)


def abort(tokens: list[int], **settings: Any) -> Request:
    request = Request("r", [1, 2, 3], SamplingParams(max_tokens=9999, **settings), None)
    request.append_output_token_ids(tokens)
    request.status = RequestStatus.FINISHED_ABORTED
    return request


@pytest.mark.parametrize(
    ("text", "settings", "ended"),
    [
        (REPLY, {"stop": STOP}, True),
        (REPLY, {"stop": ["Question:", STOP]}, True),
        (REPLY, {"stop": ["Question:"]}, False),
        (REPLY, {}, False),
        ("", {"stop": STOP}, False),
        # The client has gone, for the server had not stopped there.
        (REPLY, {"stop": STOP, "min_tokens": 200}, False),
        (REPLY + " and on" * 20, {"stop": STOP}, True),
    ],
)
def test_a_reply_with_a_stop_string_at_its_end_has_ended(
    stop_strings: StopStrings, tokenizer: Any, text: str, settings: dict[str, Any], ended: bool
) -> None:
    assert stop_strings.ended(abort(tokenizer.encode(text), **settings)) is ended


def test_only_the_end_of_a_long_reply_is_read(stop_strings: StopStrings, tokenizer: Any) -> None:
    tokens = tokenizer.encode(REPLY)
    assert stop_strings.ended(abort([*[5] * 20_000, *tokens, *[5] * (MAX_STOP_TOKENS - len(tokens))], stop=STOP))
    assert not stop_strings.ended(abort([*tokens, *[5] * MAX_STOP_TOKENS], stop=STOP))


def test_an_engine_without_tokenizer_finds_none(tiny_model_path: str, tokenizer: Any) -> None:
    config = make_config(tiny_model_path, None, {"skip_tokenizer_init": True})
    assert not StopStrings(config.model_config).ended(abort(tokenizer.encode(REPLY), stop=STOP))


@pytest.mark.parametrize(("stop", "status"), [(STOP, "finished"), ("Question:", "aborted")])
@pytest.mark.parametrize("named", ["one", "several", "all"])
def test_requests_that_the_server_ends_are_whole_or_aborted(
    tiny_model_path: str, tokenizer: Any, stop: str, status: str, named: str
) -> None:
    lone = LoneScheduler(make_scheduler(make_config(tiny_model_path, AgentScheduler, policy="agentcache"), 40))
    scheduler, ended = lone.scheduler, []
    params = SamplingParams(max_tokens=99, stop=stop)
    for name in ("a", "b"):
        scheduler.add_request(lone.make_request(name, [7] * 3 * BLOCK_SIZE, params, session_id=name))
    lone.step()
    scheduler.requests["a"].append_output_token_ids(tokenizer.encode(REPLY))
    for ids in {"one": ["a", "b"], "several": [["a", "b", "unknown"]], "all": [None]}[named]:
        ended += [request.request_id for request in scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)]
    assert sorted(ended) == ["a", "b"]
    assert [view_session(scheduler.tracker, name)[0].turns[0].status for name in "ab"] == [status, "aborted"]
    assert not scheduler.requests
    scheduler.check_integrity()


def test_a_reply_that_failed_for_another_cause_is_not_looked_at(tiny_model_path: str, tokenizer: Any) -> None:
    lone = LoneScheduler(make_scheduler(make_config(tiny_model_path, AgentScheduler, policy="agentcache"), 40))
    params = SamplingParams(max_tokens=99, stop=STOP)
    lone.scheduler.add_request(lone.make_request("a", [7] * 9, params, session_id="a"))
    lone.step()
    lone.scheduler.requests["a"].append_output_token_ids(tokenizer.encode(REPLY))
    lone.scheduler.finish_requests("a", RequestStatus.FINISHED_ERROR)
    assert view_session(lone.scheduler.tracker, "a")[0].turns[0].status == "failed"
