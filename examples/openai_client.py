"""An agent made with the openai client alone: it asks, runs the tools that the reply calls, and asks again."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import cast

from local_tools import Folder
from openai import OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from session import explain_failure, open_session

MAX_TURNS = 10
TOOLS: list[ChatCompletionFunctionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "list_files",
            "description": "List the names of the files in the folder.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "count_words",
            "description": "Count the words of a text file in the folder.",
            "parameters": {
                "type": "object",
                "properties": {"file": {"type": "string", "description": "The file's name."}},
                "required": ["file"],
            },
        },
    },
]


def run_agent(client: OpenAI, model: str, session: str, folder: Folder, question: str) -> str:
    """The model's answer. Every request carries the session, by which the server knows that they are one job."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    for turn in range(MAX_TURNS):
        reply = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, extra_body={"session_id": session}
        )
        show_usage(turn, reply.usage)
        message = reply.choices[0].message
        calls = [call for call in message.tool_calls or [] if call.type == "function"]
        if not calls:
            return message.content or ""
        # Sent back as it came, so that the next prompt goes on from what the server has cached.
        messages.append(cast(ChatCompletionMessageParam, message.model_dump(exclude_none=True)))
        for call in calls:
            result = run_tool(folder, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise SystemExit(f"no answer within {MAX_TURNS} turns")


def run_tool(folder: Folder, name: str, arguments: str) -> str:
    """The result as text; what went wrong is one too, so that the model can try again."""
    try:
        given = json.loads(arguments or "{}")
        match name:
            case "list_files":
                return folder.list_files()
            case "count_words":
                return folder.count_words(given["file"])
            case _:
                return f"error: there is no tool {name}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"error: {error!r}"


def show_usage(turn: int, usage: CompletionUsage | None) -> None:
    # `vllm serve` tells cached tokens when it runs with --enable-prompt-tokens-details, `agentcache serve` always.
    if usage and usage.prompt_tokens_details:
        cached = usage.prompt_tokens_details.cached_tokens or 0
        print(f"turn {turn}: {cached} of {usage.prompt_tokens} prompt tokens were cached")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Which file in the folder has the most words?")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="the first that the server lists, unless given")
    parser.add_argument("--folder", type=Path, default=Path(), help="what the tools may read; here, unless given")
    parser.add_argument("--keep-job", action="store_true", help="do not tell the server that the job is over")
    options = parser.parse_args()
    api_key = os.environ.get("OPENAI_API_KEY", "none")
    with explain_failure(options.base_url), OpenAI(base_url=options.base_url, api_key=api_key) as client:
        model = options.model or client.models.list().data[0].id
        with open_session(options.base_url, api_key, keep=options.keep_job) as session:
            print(run_agent(client, model, session, Folder(options.folder), options.question))  # noqa: T201


if __name__ == "__main__":
    main()
