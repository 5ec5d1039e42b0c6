from __future__ import annotations

from typing import Any

import pytest
from fake_server import MODEL, FakeServer, encode
from prometheus_client.parser import text_string_to_metric_families

from agentcache.errors import InputError, ServerError
from agentcache.replay.endpoint import CacheFacts, Endpoint, parse_cache_facts

# As vLLM 0.32 writes it, labels and families that nobody asks for left out.
METRICS = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 3.0
vllm:num_preemptions_total{engine="1",model_name="tiny"} 4.0
# HELP vllm:num_preemptions_created Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7952597872025616e+09
vllm:num_preemptions_created{engine="1",model_name="tiny"} 1.7952597872025616e+09
# HELP vllm:request_num_preemptions Histogram of the number of times a request was preempted.
# TYPE vllm:request_num_preemptions histogram
vllm:request_num_preemptions_bucket{engine="0",le="+Inf",model_name="tiny"} 9.0
vllm:request_num_preemptions_count{engine="0",model_name="tiny"} 9.0
vllm:request_num_preemptions_sum{engine="0",model_name="tiny"} 9.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="4096",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="1",num_gpu_blocks="4096",sliding_window="None"} 1.0
"""


def refusal(url: str, model: str | None = None) -> str:
    """The text of the refusal, which must be one line."""
    with pytest.raises(InputError) as caught:
        Endpoint(url, "none", model)
    text = str(caught.value)
    assert text.count("\n") == 0
    return text


def test_the_first_model_is_taken_with_its_context(server: FakeServer) -> None:
    endpoint = Endpoint(server.url + "/", "none")
    assert (endpoint.base_url, endpoint.model, endpoint.max_tokens) == (server.url, MODEL, 100_000)


def test_a_server_may_keep_its_context_to_itself(server: FakeServer) -> None:
    server.models = {"data": [{"id": "a"}, {"id": "b"}]}
    endpoint = Endpoint(server.url, "none", "b")
    assert (endpoint.model, endpoint.max_tokens) == ("b", None)


def test_nobody_answers(port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1"
    assert refusal(url).startswith(f"--base-url {url}: no OpenAI server answers there")


def test_the_base_url_ends_in_v1() -> None:
    text = "--base-url http://host:8000: must end in /v1, as in http://host:8000/v1"
    assert refusal("http://host:8000") == text


@pytest.mark.parametrize("url", ["127.0.0.1:1/v1", "/v1", "ftp://127.0.0.1/v1", "http://[bad/v1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    assert refusal(url).startswith(f"--base-url {url}: ")


def test_an_unknown_model_is_refused_with_what_is_served(server: FakeServer) -> None:
    assert refusal(server.url, "other") == f"--model other: {server.url} serves {MODEL}"


def test_a_server_without_models_is_refused(server: FakeServer) -> None:
    server.models = {"data": []}
    assert "serves no model" in refusal(server.url)


@pytest.mark.parametrize("answer", [None, {"models": []}, []], ids=repr)
def test_what_is_no_openai_server_is_refused_in_one_line(server: FakeServer, answer: Any) -> None:
    server.models = answer
    assert "no OpenAI server answers there" in refusal(server.url)


def test_a_server_that_follows_replies_is_accepted(server: FakeServer) -> None:
    Endpoint(server.url, "none").check_forced_reply()
    (body,) = server.bodies
    assert body["vllm_xargs"]["agentcache_reply_token_ids"] == encode("Ready.\x02")


def test_headers_go_along_with_what_is_asked_of_the_server(server: FakeServer) -> None:
    Endpoint(server.url, "none", headers={"X-data-parallel-rank": "2"}).check_forced_reply()
    assert [(headers["x-data-parallel-rank"], headers["authorization"]) for headers in server.headers] == [
        ("2", "Bearer none"),
        ("2", "Bearer none"),
    ]


def test_a_server_that_ignores_replies_is_refused_with_advice(server: FakeServer) -> None:
    server.follows_replies = False
    remedy = "does not follow recorded replies; start it with `agentcache serve MODEL --forced-replies`"
    with pytest.raises(InputError, match=remedy):
        Endpoint(server.url, "none").check_forced_reply()


def test_a_refusal_of_forced_replies_is_passed_on_with_a_reason(server: FakeServer) -> None:
    server.refused_jobs.add("")
    with pytest.raises(InputError, match="the engine is on fire; start it with `agentcache serve MODEL --forced"):
        Endpoint(server.url, "none").check_forced_reply()


def test_cache_facts_are_of_one_engine_and_preemptions_of_all() -> None:
    facts = parse_cache_facts(text_string_to_metric_families(METRICS))
    assert facts == CacheFacts(block_size=128, cache_tokens=4095 * 128, preemptions=7)


def test_evictions_are_those_of_all_engines_by_cause() -> None:
    samples = {("capacity", 0): 30, ("reset", 0): 2, ("capacity", 1): 12}
    text = "# TYPE agentcache:evicted_blocks_total counter\n"
    for (cause, engine), blocks in samples.items():
        text += f'agentcache:evicted_blocks_total{{cause="{cause}",engine="{engine}"}} {blocks}.0\n'
    facts = parse_cache_facts(text_string_to_metric_families(text))
    assert facts.evictions == {"capacity": 42, "reset": 2}


def test_waits_are_those_of_all_engines_by_reason() -> None:
    text = "# TYPE agentcache:turn_wait_seconds histogram\n"
    for reason, engine, seconds in (("pins", 0, 1.5), ("pins", 1, 2.0), ("batch_full", 0, 0.25)):
        labels = f'engine="{engine}",reason="{reason}"'
        text += f'agentcache:turn_wait_seconds_bucket{{{labels},le="+Inf"}} 9.0\n'
        text += f"agentcache:turn_wait_seconds_count{{{labels}}} 9.0\n"
        text += f"agentcache:turn_wait_seconds_sum{{{labels}}} {seconds}\n"
    facts = parse_cache_facts(text_string_to_metric_families(text))
    assert facts.waits_s == {"pins": 3.5, "batch full": 0.25}


def test_only_what_happened_since_is_counted() -> None:
    before = CacheFacts(16, 640, preemptions=3, evictions={"capacity": 10}, waits_s={"pins": 1.0})
    after = CacheFacts(
        16, 640, preemptions=5, evictions={"capacity": 17, "reset": 4}, waits_s={"pins": 3.5, "load": 2.0}
    )
    assert after.count_since(before) == CacheFacts(
        16, 640, preemptions=2, evictions={"capacity": 7, "reset": 4}, waits_s={"pins": 2.5, "load": 2.0}
    )


@pytest.mark.parametrize("known", [CacheFacts(16, 640, 5, {"capacity": 1}), CacheFacts(16, 640, None)])
def test_what_is_not_known_at_both_times_is_not_known(known: CacheFacts) -> None:
    unknown = CacheFacts(16, 640, None)
    assert known.count_since(unknown) == unknown.count_since(known) == unknown


def read_hits(gpu: int, host: int, *, steered: bool, disk: int = 0) -> CacheFacts:
    text = "# TYPE vllm:prompt_tokens_by_source_total counter\n"
    for source, tokens in {"local_compute": 99, "local_cache_hit": gpu, "external_kv_transfer": host}.items():
        text += f'vllm:prompt_tokens_by_source_total{{engine="0",source="{source}"}} {tokens}.0\n'
    text += "# TYPE vllm:prompt_tokens_cached_by_source_total counter\n"
    for source, tokens in {"device": gpu, "disk": disk}.items():
        text += f'vllm:prompt_tokens_cached_by_source_total{{engine="0",source="{source}"}} {tokens}.0\n'
    text += "# TYPE agentcache:host_blocks gauge\n"
    text += 'agentcache:host_blocks{engine="0"} 50.0\n' if steered else ""
    return parse_cache_facts(text_string_to_metric_families(text))


def test_hits_are_told_by_place_where_there_are_two_caches() -> None:
    before = read_hits(10, 5, steered=True)
    assert read_hits(30, 9, steered=True).count_since(before).hit_tokens == {"gpu": 20, "host": 4}
    assert read_hits(30, 5, steered=True).count_since(before).hit_tokens == {"gpu": 20, "host": 0}
    unsteered = read_hits(10, 5, steered=False)
    assert read_hits(30, 9, steered=False).count_since(unsteered).hit_tokens == {"gpu": 20, "host": 4}
    assert read_hits(30, 5, steered=False).count_since(unsteered).hit_tokens is None


def test_what_came_from_disk_is_told_apart() -> None:
    before = read_hits(10, 5, steered=False)
    hits = read_hits(30, 25, steered=False, disk=14).count_since(before).hit_tokens
    assert hits == {"gpu": 20, "host": 6, "disk": 14}
    hits = read_hits(30, 19, steered=False, disk=14).count_since(before).hit_tokens
    assert hits == {"gpu": 20, "host": 0, "disk": 14}
    # The disk's are counted at admission, the others with the first token.
    assert read_hits(30, 5, steered=False, disk=14).hit_tokens == {"gpu": 30, "host": 0, "disk": 14}


def test_metrics_without_a_cache_say_nothing() -> None:
    assert parse_cache_facts(text_string_to_metric_families("up 1\n")) == CacheFacts(None, None, None)


def test_facts_are_read_from_the_server(server: FakeServer) -> None:
    endpoint = Endpoint(server.url, "none")
    assert endpoint.read_cache_facts() == CacheFacts(None, None, None)
    server.metrics = METRICS
    assert endpoint.read_cache_facts() == CacheFacts(128, 4095 * 128, 7)


def test_a_server_that_went_away_is_an_error_of_the_server(server: FakeServer, port: int) -> None:
    endpoint = Endpoint(server.url, "none")
    server.metrics = METRICS
    endpoint._http.base_url = f"http://127.0.0.1:{port}"
    with pytest.raises(ServerError, match="the server is gone"):
        endpoint.read_cache_facts()


def test_the_servers_tokenizer_takes_texts_and_chats(server: FakeServer) -> None:
    tokenizer = Endpoint(server.url, "none").tokenizer
    question = {"role": "user", "content": "Where?"}
    assert tokenizer.encode("tea") == encode("tea")
    assert tokenizer.render([question], for_reply=True) == encode("\x01user\nWhere?\x02\x01assistant\n")
    assert tokenizer.render([question], for_reply=False) == encode("\x01user\nWhere?\x02")


def test_the_servers_tokenizer_takes_replies_with_calls(server: FakeServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "shelf"}'}}
    tokenizer = Endpoint(server.url, "none").tokenizer
    rendered = tokenizer.render([{"role": "assistant", "content": "I look.", "tool_calls": [call]}], for_reply=False)
    wanted = '\x01assistant\nI look.\n<tool_call>{"name": "look", "arguments": {"at": "shelf"}}</tool_call>\x02'
    assert rendered == encode(wanted)


def test_a_tokenizer_that_fails_is_an_error_of_one_line(server: FakeServer) -> None:
    server.tokenizes = False
    tokenizer = Endpoint(server.url, "none").tokenizer
    with pytest.raises(ServerError) as caught:
        tokenizer.render([{"role": "user", "content": "Where?"}], for_reply=True)
    assert "/tokenize failed" in str(caught.value)
    assert str(caught.value).count("\n") == 0
