"""LooGLE and LongBench files: what is asked about long documents, and the recorded answers."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from agentcache.errors import InputError
from workloads.loaded import Record, parse_record, read_lines

# Ours, for entries that come without a question.
SUMMARIZE = "Write a summary of the text above."
_NONE = ("", "none", "None")


@dataclass(frozen=True, slots=True)
class Exchange:
    """`document` is what the question brings along, "" for one about a document that was there before."""

    document: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Thread:
    """Exchanges that make conversations in their order, each of which begins with the document `opening`."""

    opening: str
    exchanges: tuple[Exchange, ...]


class _LoogleEntry(Record):
    input: str = Field(min_length=1)
    title: Any = None
    qa_pairs: str
    output: str | None
    question: Any = None


class _LoogleAnswer(Record):
    Q: str = Field(min_length=1)
    A: str
    type: Any = None
    S: Any = None


class _LongBenchEntry(Record):
    input: str
    context: str = Field(min_length=1)
    answers: list[str] = Field(min_length=1)
    length: Any = None
    dataset: Any = None
    language: Any = None
    all_classes: Any = None
    id: Any = Field(default=None, alias="_id")


_ANSWERS = TypeAdapter(list[_LoogleAnswer])


def read_threads(path: Path, scale: float) -> list[Thread]:
    """Read a thread a document of LooGLE, or all of LongBench in one: there each question brings its document.

    Documents are cut to their first `scale` of characters. Raises InputError with path:line.
    """
    threads = []
    brought = []
    for line, text in read_lines(path):
        place = f"{path}:{line}"
        if _is_longbench(text, place):
            entry = parse_record(_LongBenchEntry, text, place)
            brought.append(Exchange(_cut(entry.context, scale), entry.input or SUMMARIZE, entry.answers[0]))
        else:
            document = parse_record(_LoogleEntry, text, place)
            threads.append(Thread(_cut(document.input, scale), tuple(_read_exchanges(document, place))))
        if brought and threads:
            raise InputError(f"{place}: a file has entries either of LooGLE or of LongBench, this one has both")
    return threads or [Thread("", tuple(brought))]


def _is_longbench(text: bytes, place: str) -> bool:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise InputError(f"{place}: is not a JSON object")
    return "context" in entry


def _read_exchanges(entry: _LoogleEntry, place: str) -> Iterator[Exchange]:
    if entry.qa_pairs in _NONE:
        if entry.output is None:
            raise InputError(f"{place}: output: is null, and there are no qa_pairs; one of them is needed")
        yield Exchange("", SUMMARIZE, entry.output)
        return
    # LooGLE writes this field as a Python literal.
    try:
        answers = _ANSWERS.validate_python(ast.literal_eval(entry.qa_pairs))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError(f"{place}: qa_pairs{''.join(f'[{part}]' for part in first['loc'])}: {first['msg']}") from None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InputError(f"{place}: qa_pairs: is not a Python list of questions and answers") from None
    if not answers:
        raise InputError(f"{place}: qa_pairs: holds no questions")
    for answer in answers:
        yield Exchange("", answer.Q, answer.A)


def _cut(document: str, scale: float) -> str:
    return document[: max(1, round(len(document) * scale))]
