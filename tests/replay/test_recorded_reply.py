from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agentcache.errors import InputError
from agentcache.jobs.recorded_job import ReplyEncoder, assistant_message, count_tokens, find_divergence
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import resolve_model
from tool_runtime.agent.job import Job, Message, ToolCall, ToolResult, Turn
from workloads.bfcl.web_search import build_jobs
from workloads.pacing import parse_tool_latency

CALLS = (
    ToolCall("search_engine_query", '{"keywords":   "tea \\"leaf\\"", "max_results": 3}'),
    ToolCall("fetch_url_content", ""),
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def model_path() -> str:
    return resolve_model("tiny").path


@pytest.fixture(scope="module")
def tokenizer(model_path: str) -> LocalTokenizer:
    return LocalTokenizer(model_path)


@pytest.fixture(scope="module")
def encoder(tokenizer: LocalTokenizer) -> ReplyEncoder:
    return ReplyEncoder(tokenizer)


@pytest.fixture(scope="module")
def jobs(tokenizer: LocalTokenizer) -> list[Job]:
    latency = parse_tool_latency("1")
    return build_jobs(4, encode=tokenizer.encode, scale=0.1, tool_latency=latency, arrivals=[0.0] * 4, seed=3)


@pytest.fixture(scope="module")
def end_of_turn(tokenizer: LocalTokenizer) -> int:
    (token,) = tokenizer.encode("<|im_end|>")
    return token


def with_template(model_path: str, folder: Path, template: str | None) -> LocalTokenizer:
    """The tiny model's tokenizer with another chat template, saved and loaded as a user's model is."""
    made = AutoTokenizer.from_pretrained(model_path)
    made.chat_template = template
    made.save_pretrained(folder)
    return LocalTokenizer(str(folder))


def test_an_answer_is_forced_as_its_text_and_the_end_of_turn(encoder: ReplyEncoder, tokenizer: LocalTokenizer) -> None:
    assert encoder.encode(Turn("Tea grows in India.")) == tokenizer.encode("Tea grows in India.<|im_end|>")


def test_an_empty_answer_is_forced_as_the_end_of_turn(encoder: ReplyEncoder, end_of_turn: int) -> None:
    assert encoder.encode(Turn("")) == [end_of_turn]


def test_tool_calls_are_forced_as_the_template_writes_them(encoder: ReplyEncoder, tokenizer: LocalTokenizer) -> None:
    wanted = (
        "I look.\n"
        '<tool_call>\n{"name": "search_engine_query", "arguments": {"keywords": "tea \\"leaf\\"", "max_results": 3}}\n'
        '</tool_call>\n<tool_call>\n{"name": "fetch_url_content", "arguments": {}}\n</tool_call><|im_end|>'
    )
    assert encoder.encode(Turn("I look.", CALLS)) == tokenizer.encode(wanted)


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=30))
@example(text="Straße – 東京 🍵")
def test_any_text_is_forced_whole_with_one_end_of_turn(
    encoder: ReplyEncoder, tokenizer: LocalTokenizer, end_of_turn: int, text: str
) -> None:
    assert encoder.encode(Turn(text)) == [*tokenizer.encode(text.strip()), end_of_turn]


def test_forced_replies_end_with_their_only_end_of_turn(
    encoder: ReplyEncoder, jobs: list[Job], end_of_turn: int
) -> None:
    replies = [encoder.encode(turn) for job in jobs for turn in job.turns]
    assert len(replies) > len(jobs)
    for reply in replies:
        assert reply.index(end_of_turn) == len(reply) - 1


def test_each_prompt_continues_the_last_and_its_forced_reply(
    encoder: ReplyEncoder, tokenizer: LocalTokenizer, jobs: list[Job]
) -> None:
    for job in jobs:
        messages: list[Message] = list(job.messages)
        for turn in job.turns:
            prompt = tokenizer.render(messages, job.tools, for_reply=True)
            messages += [assistant_message(turn), *map(as_message, turn.results)]
            next_prompt = tokenizer.render(messages, job.tools, for_reply=True)
            assert find_divergence(prompt + encoder.encode(turn), next_prompt) is None


def as_message(result: ToolResult) -> Message:
    return {"role": "tool", "tool_call_id": "call-0", "content": result.content}


def test_tokens_of_a_job_are_its_last_prompt_and_reply_rendered(
    encoder: ReplyEncoder, tokenizer: LocalTokenizer, jobs: list[Job]
) -> None:
    newline = tokenizer.encode("\n")
    for job in jobs:
        messages: list[Message] = list(job.messages)
        for turn in job.turns[:-1]:
            messages += [assistant_message(turn), *map(as_message, turn.results)]
        last_prompt = tokenizer.render(messages, job.tools, for_reply=True)
        assert count_tokens(job, tokenizer) == len(last_prompt + encoder.encode(job.turns[-1]) + newline)


def test_a_template_without_end_of_turn_forces_the_text_alone(model_path: str, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]\n{% endif %}"
    )
    tokenizer = with_template(model_path, tmp_path, template)
    assert ReplyEncoder(tokenizer).encode(Turn("Tea grows.")) == tokenizer.encode("Tea grows.")


def test_only_the_first_token_behind_a_reply_is_forced(model_path: str, tmp_path: Path) -> None:
    tokenizer = with_template(model_path, tmp_path, CHATML.replace("<|im_end|>\n", "<|endoftext|>\n\n-- \n"))
    assert ReplyEncoder(tokenizer).encode(Turn("Tea grows.")) == tokenizer.encode("Tea grows.<|endoftext|>")


def test_a_reply_not_at_the_generation_prompt_is_refused(model_path: str, tmp_path: Path) -> None:
    tokenizer = with_template(model_path, tmp_path, CHATML.replace("assistant\n", "assistant\n<think>\n"))
    with pytest.raises(InputError, match="does not put a reply where the generation prompt ends"):
        ReplyEncoder(tokenizer)


def test_another_end_behind_tool_calls_is_refused(model_path: str, tmp_path: Path) -> None:
    end = "{{ '<|endoftext|>' if m.tool_calls else '<|im_end|>' }}\n{% endfor %}"
    encoder = ReplyEncoder(with_template(model_path, tmp_path, CHATML.replace("<|im_end|>\n{% endfor %}", end)))
    encoder.encode(Turn("Tea grows."))
    with pytest.raises(InputError, match="ends its replies in different ways"):
        encoder.encode(Turn("I look.", CALLS))


def test_a_model_without_chat_template_is_refused(model_path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no chat template"):
        with_template(model_path, tmp_path, None)


def test_a_folder_without_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\Amodel .*: no tokenizer can be loaded.*\Z"):
        LocalTokenizer(str(tmp_path))


TOKENS = st.lists(st.integers(0, 2), max_size=8)


@given(TOKENS, TOKENS, TOKENS)
def test_the_divergence_is_the_first_position_not_as_known(shared: list[int], one: list[int], other: list[int]) -> None:
    known, prompt = shared + one, shared + other
    wrong = [at for at in range(len(known)) if at >= len(prompt) or prompt[at] != known[at]]
    assert find_divergence(known, prompt) == (wrong[0] if wrong else None)
