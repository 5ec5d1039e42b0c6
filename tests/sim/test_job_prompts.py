from __future__ import annotations

from pathlib import Path

import pytest
from made_command import make_settings
from made_simulation import make_turn, record

from agentcache.errors import InputError
from agentcache.jobs.loader import load_jobs
from agentcache.jobs.recorded_job import PromptWriter, TextJob, assistant_message, tool_messages
from agentcache.jobs.tokenizer import LocalTokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model_path: str) -> LocalTokenizer:
    return LocalTokenizer(tiny_model_path)


@pytest.fixture(scope="module")
def recorded(tokenizer: LocalTokenizer) -> list[TextJob]:
    settings = make_settings(Path("out"), jobs=12, scale=0.2, seed=5)
    several_calls = record(tokenizer, "own", 0.0, make_turn("", 1.0, 2.0), make_turn(" I  look. ", 1.0), make_turn("."))
    loaded = [one for one in load_jobs(settings.jobs, tokenizer).jobs if isinstance(one, TextJob)]
    return [*loaded, several_calls]


def test_prompts_equal_the_rendering_of_the_whole_chat(tokenizer: LocalTokenizer, recorded: list[TextJob]) -> None:
    writer = PromptWriter(tokenizer)
    for one in recorded:
        messages = list(one.job.messages)
        prompts = list(writer.write(one))
        assert len(prompts) == len(one.job.turns)
        for turn, prompt in zip(one.job.turns, prompts, strict=True):
            assert prompt == tokenizer.render(messages, one.job.tools, for_reply=True)
            messages += [assistant_message(turn), *tool_messages(turn)]
        assert list(writer.write(one)) == prompts, "the second policy gets the same"


def test_template_that_rewrites_replies_is_refused(tokenizer: LocalTokenizer, recorded: list[TextJob]) -> None:
    broken = TextJob(recorded[0].job, tuple([*reply[:-1], 5] for reply in recorded[0].replies), recorded[0].tokens)
    with pytest.raises(InputError, match="changes a reply when the chat goes on"):
        list(PromptWriter(tokenizer).write(broken))
