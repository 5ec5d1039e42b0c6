"""The same agent made with the OpenAI Agents SDK: the framework runs the loop, and a header says which job it is."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResult,
    Usage,
    function_tool,
)
from local_tools import Folder
from openai import AsyncOpenAI
from session import explain_failure, open_session


async def run_agent(client: AsyncOpenAI, model: str, session: str, folder: Folder, question: str) -> RunResult:
    """The session is the run's, not the client's: one client and one agent do for many jobs at a time."""
    agent = Agent(
        name="reader",
        model=OpenAIChatCompletionsModel(model, client),
        tools=[
            function_tool(folder.list_files, failure_error_function=describe_error),
            function_tool(folder.count_words, failure_error_function=describe_error),
        ],
    )
    # Tracing would send the conversation to OpenAI.
    config = RunConfig(model_settings=ModelSettings(extra_headers={"X-Session-ID": session}), tracing_disabled=True)
    return await Runner.run(agent, question, run_config=config)


def describe_error(_context: RunContextWrapper[Any], error: Exception) -> str:
    """What a tool raised is a result too, so that the model can try again."""
    return f"error: {error!r}"


def show_usage(usage: Usage) -> None:
    # 0 may also mean that the server does not tell them: `vllm serve` needs --enable-prompt-tokens-details.
    if cached := usage.input_tokens_details.cached_tokens:
        print(f"{usage.requests} requests: {cached} of {usage.input_tokens} prompt tokens were cached")  # noqa: T201


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Which file in the folder has the most words?")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="the first that the server lists, unless given")
    parser.add_argument("--folder", type=Path, default=Path(), help="what the tools may read; here, unless given")
    parser.add_argument("--keep-job", action="store_true", help="do not tell the server that the job is over")
    options = parser.parse_args()
    api_key = os.environ.get("OPENAI_API_KEY", "none")
    with explain_failure(options.base_url):
        async with AsyncOpenAI(base_url=options.base_url, api_key=api_key) as client:
            model = options.model or (await client.models.list()).data[0].id
            with open_session(options.base_url, api_key, keep=options.keep_job) as session:
                result = await run_agent(client, model, session, Folder(options.folder), options.question)
    show_usage(result.context_wrapper.usage)
    print(result.final_output)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
