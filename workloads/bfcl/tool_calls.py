"""The calls and results of the web_search tools, in the official tools' own forms."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np

from tool_runtime.agent.job import ToolCall
from workloads.bfcl.dataset import FETCH_TOOL, SEARCH_TOOL
from workloads.filler import Encode, write_filler

_MAX_HITS = 10
# Below this a search gives fewer hits: a hit of a recorded search has about 100 tokens.
_MIN_TOKENS_PER_HIT = 60
_MIN_KEYWORD_LETTERS = 4


def write_call(tool: str, question: str, rng: np.random.Generator) -> ToolCall:
    """Write a call of the tool with shape letter `tool`, with arguments from the question's words."""
    words = re.findall(r"[A-Za-z0-9]+", question)
    keywords = [word for word in words if len(word) >= _MIN_KEYWORD_LETTERS] or words
    wanted = min(len(keywords), int(rng.integers(3, 7)))
    start = int(rng.integers(len(keywords) - wanted + 1))
    phrase = keywords[start : start + wanted]
    if tool == "s":
        return ToolCall(SEARCH_TOOL, json.dumps({"keywords": " ".join(phrase)}))
    url = _make_url("-".join(phrase[:3]).lower(), rng)
    return ToolCall(FETCH_TOOL, json.dumps({"url": url, "mode": "truncate"}))


def write_call_text(call: ToolCall) -> str:
    """Write the call as a model with Hermes tool calls does: what its tokens are counted on."""
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'


def write_result(call: ToolCall, tokens: int, encode: Encode, rng: np.random.Generator) -> str:
    """Write the JSON text that `call` gives back, of about `tokens` tokens; the form without text if that is longer."""
    if call.name == FETCH_TOOL:

        def wrap(text: str) -> str:
            return json.dumps({"content": text})
    else:
        heads = _make_heads(call, min(_MAX_HITS, tokens // _MIN_TOKENS_PER_HIT), rng)

        def wrap(text: str) -> str:
            bodies = _split_words(text, len(heads))
            return json.dumps([{**head, "body": body} for head, body in zip(heads, bodies, strict=True)])

    return wrap(write_filler(tokens, encode, rng, wrap))


def _make_heads(call: ToolCall, hits: int, rng: np.random.Generator) -> list[dict[str, str]]:
    """Make title and address of each hit; one hit with neither where even a single full one is too long."""
    keywords: list[str] = json.loads(call.arguments)["keywords"].split()
    heads = []
    for _ in range(hits):
        title = [keywords[pick] for pick in rng.permutation(len(keywords))[:4]]
        heads.append({"title": " ".join(title), "href": _make_url("-".join(title).lower(), rng)})
    return heads or [{"title": "", "href": ""}]


def _make_url(slug: str, rng: np.random.Generator) -> str:
    return f"https://example.org/{slug}/{rng.integers(1000)}"


def _split_words(text: str, parts: int) -> list[str]:
    """Split the text into consecutive pieces of nearly the same number of words."""
    words = text.split(" ")
    bounds = [len(words) * part // parts for part in range(parts + 1)]
    return [" ".join(words[start:end]) for start, end in pairwise(bounds)]
