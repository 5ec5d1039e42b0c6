from __future__ import annotations

import json

import pytest
from converters.documents import SUMMARIZE, Exchange, Thread, read_threads

from agentcache.errors import InputError


def _loogle(document="A long text.", pairs=(("Who?", "Ann"),), **fields):
    answers = [{"Q": question, "A": answer, "type": "t", "S": ["A long"]} for question, answer in pairs]
    return {"input": document, "title": "T", "qa_pairs": repr(answers), "output": "None", **fields}


def _longbench(context="News.", question="What?", answer="This.", **fields):
    return {"input": question, "context": context, "answers": [answer], "_id": "1", "length": 2, **fields}


def _write(tmp_path, *entries):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_loogle_is_a_thread_a_document(tmp_path):
    path = _write(tmp_path, _loogle("One", [("a?", "b"), ("c?", "d")]), _loogle("Two"))
    assert read_threads(path, 1.0) == [
        Thread("One", (Exchange("", "a?", "b"), Exchange("", "c?", "d"))),
        Thread("Two", (Exchange("", "Who?", "Ann"),)),
    ]


def test_a_loogle_document_without_questions_is_summarized(tmp_path):
    path = _write(tmp_path, _loogle("One", qa_pairs="none", output="It is one.", question="none"))
    assert read_threads(path, 1.0) == [Thread("One", (Exchange("", SUMMARIZE, "It is one."),))]


def test_longbench_is_one_thread_of_questions_with_documents(tmp_path):
    path = _write(tmp_path, _longbench(), _longbench("More.", question=""))
    assert read_threads(path, 1.0) == [
        Thread("", (Exchange("News.", "What?", "This."), Exchange("More.", SUMMARIZE, "This.")))
    ]


def test_documents_are_cut_to_their_share(tmp_path):
    [thread] = read_threads(_write(tmp_path, _loogle("abcdefgh")), 0.5)
    assert thread.opening == "abcd"
    [thread] = read_threads(_write(tmp_path, _longbench("abcdefgh")), 0.01)
    assert thread.exchanges[0].document == "a"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ([], "is not a JSON object"),
        (_loogle(input=3), "input: .*valid string"),
        (_loogle(input=""), "input: .*at least 1 character"),
        (_loogle(qa_pairs="[{"), "qa_pairs: is not a Python list"),
        (_loogle(qa_pairs="[]"), "qa_pairs: holds no questions"),
        (_loogle(qa_pairs="[{'Q': 'a?'}]"), r"qa_pairs\[0\]\[A\]: Field required"),
        (_loogle(qa_pairs="none", output=None), "output: is null"),
        (_loogle(evidence=1), "evidence: Extra inputs"),
        (_longbench(answers=[]), "answers: .*at least 1 item"),
        (_longbench(context=""), "context: .*at least 1 character"),
        ({"context": "News."}, "input: Field required"),
        (_longbench(), "a file has entries either of LooGLE or of LongBench"),
    ],
)
def test_a_bad_line_is_named_by_number_and_field(tmp_path, entry, problem):
    with pytest.raises(InputError, match=rf"data\.jsonl:2: {problem}") as caught:
        read_threads(_write(tmp_path, _loogle(), entry), 1.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{broken", "[" * 100_000], ids=["broken", "deep"])
def test_text_that_is_not_json_is_named_by_its_line(tmp_path, text):
    path = tmp_path / "data.jsonl"
    path.write_text(f"\n{text}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"data\.jsonl:2: is not a JSON object"):
        read_threads(path, 1.0)
