from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from converters.conversation import read_conversations
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError


def _write(folder, *questions):
    """A LooGLE document a number, with so many questions."""
    path = folder / "data.jsonl"
    entries = []
    for document, count in enumerate(questions):
        pairs = [{"Q": f"q{document}.{number}?", "A": f"a{document}.{number}"} for number in range(count)]
        entries.append({"input": f"document {document}", "title": "", "qa_pairs": repr(pairs), "output": "None"})
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def _load(
    path,
    *,
    jobs=None,
    rate=0.5,
    cv=0.25,
    dispersion=5.0,
    turns=2,
    least_turns=None,
    reply_tokens=None,
    scale=1.0,
    seed=0,
):
    return read_conversations(
        path,
        jobs=jobs,
        rate=rate,
        cv=cv,
        dispersion=dispersion,
        turns=turns,
        least_turns=least_turns,
        reply_tokens=reply_tokens,
        encode=str.split,
        scale=scale,
        seed=seed,
    )


def _asked(job):
    return [*(message["content"] for message in job.messages), *(turn.said[0]["content"] for turn in job.turns[:-1])]


def test_a_session_is_a_document_then_a_question_a_turn(tmp_path):
    first, second = _load(_write(tmp_path, 3))
    assert first.messages == ({"role": "user", "content": "document 0\n\nq0.0?"},)
    assert _asked(first) == ["document 0\n\nq0.0?", "q0.1?"]
    assert [turn.content for turn in first.turns] == ["a0.0", "a0.1"]
    assert (first.turns[-1].said, first.turns[-1].pause_s) == ((), 0.0)
    assert _asked(second) == ["document 0\n\nq0.2?"]


def test_sessions_of_one_document_stand_apart(tmp_path):
    jobs = _load(_write(tmp_path, 4, 3, 1))
    assert [_asked(job)[0] for job in jobs] == [
        "document 0\n\nq0.0?",
        "document 1\n\nq1.0?",
        "document 2\n\nq2.0?",
        "document 0\n\nq0.2?",
        "document 1\n\nq1.2?",
    ]


@given(questions=st.lists(st.integers(1, 9), min_size=1, max_size=4), turns=st.integers(1, 5))
def test_every_question_is_asked_once_and_begins_one_session(tmp_path_factory, questions, turns):
    path = _write(tmp_path_factory.mktemp("data"), *questions)
    once = _load(path, turns=turns)
    answers = Counter(turn.content for job in once for turn in job.turns)
    assert len(answers) == sum(questions)
    assert {*answers.values()} == {1}
    every = _load(path, jobs=sum(questions), turns=turns)
    assert len({job.messages[0]["content"] for job in every}) == sum(questions)
    assert max(len(job.turns) for job in every) <= turns
    assert every[: len(once)] == _load(path, jobs=len(once), turns=turns)


@given(tokens=st.integers(1, 400), seed=st.integers(0, 9))
def test_short_replies_go_on_up_to_the_tokens(tmp_path_factory, tokens, seed):
    path = _write(tmp_path_factory.mktemp("data"), 3, 2)
    recorded, longer = (_load(path, turns=3, reply_tokens=most, seed=seed) for most in (None, tokens))
    for job, long_job in zip(recorded, longer, strict=True):
        assert _asked(job) == _asked(long_job)
        assert (job.arrival_s, [turn.pause_s for turn in job.turns]) == (
            long_job.arrival_s,
            [turn.pause_s for turn in long_job.turns],
        )
        for turn, long_turn in zip(job.turns, long_job.turns, strict=True):
            assert long_turn.content.startswith(turn.content)
            assert len(long_turn.content.split()) == pytest.approx(max(1, tokens), rel=0.01, abs=2)
    assert longer[:1] == _load(path, jobs=1, turns=3, reply_tokens=tokens, seed=seed)


def test_more_conversations_than_questions_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"--jobs 4: .* gives 3"):
        _load(_write(tmp_path, 3), jobs=4)


def test_longbench_turns_bring_their_documents(tmp_path):
    path = tmp_path / "bench.jsonl"
    entries = [{"input": "", "context": f"news {number}", "answers": [f"a{number}"]} for number in range(3)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    loaded = _load(path)
    assert [[question.split("\n\n")[0] for question in _asked(job)] for job in loaded] == [
        ["news 0", "news 1"],
        ["news 2"],
    ]


def test_arrivals_and_pauses_have_the_asked_means_and_cv(tmp_path):
    jobs = _load(_write(tmp_path, *[8] * 500), rate=0.5, cv=0.25, dispersion=10.0, turns=8)
    gaps = np.diff([job.arrival_s for job in jobs])
    pauses = np.array([turn.pause_s for job in jobs for turn in job.turns[:-1]])
    assert gaps.mean() == pytest.approx(2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(0.25, rel=0.1)
    assert pauses.mean() == pytest.approx(20, rel=0.02)
    assert pauses.std() / pauses.mean() == pytest.approx(0.25, rel=0.05)


def test_conversations_end_after_some_of_their_turns(tmp_path):
    path = _write(tmp_path, *[6] * 200)
    whole, some = _load(path, turns=6), _load(path, turns=6, least_turns=3)
    lengths = [len(job.turns) for job in some]
    assert {3, 4, 5, 6} == set(lengths)
    assert np.mean(lengths) == pytest.approx(4.5, abs=0.3)
    for job, full in zip(some, whole, strict=True):
        assert job.messages == full.messages
        assert [turn.content for turn in job.turns] == [turn.content for turn in full.turns[: len(job.turns)]]


def test_only_the_seed_changes_the_times(tmp_path):
    path = _write(tmp_path, 4, 4)
    assert _load(path, seed=1) == _load(path, seed=1)
    one, two = _load(path, seed=1)[0], _load(path, seed=2)[0]
    assert one.turns[0].pause_s != two.turns[0].pause_s
    assert one.messages == two.messages


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"jobs": 0}, "--jobs 0"),
        ({"scale": 1.5}, "--scale 1.5"),
        ({"turns": 0}, "--turns 0"),
        ({"turns": 4, "least_turns": 5}, "--least-turns 5"),
        ({"turns": 4, "least_turns": 0}, "--least-turns 0"),
        ({"dispersion": 0.0}, "--dispersion 0"),
        ({"rate": 0.0}, "--rate 0"),
        ({"cv": 0.0}, "--cv 0"),
    ],
)
def test_bad_options_are_refused_by_their_flag(tmp_path, options, flag):
    with pytest.raises(InputError, match=flag):
        _load(_write(tmp_path, 2), **options)
