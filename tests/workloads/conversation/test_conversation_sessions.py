from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from workloads.conversation.sessions import load_sessions


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
    return load_sessions(
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
    first, second = _load(_write(tmp_path, 3)).jobs
    assert first.messages == ({"role": "user", "content": "document 0\n\nq0.0?"},)
    assert _asked(first) == ["document 0\n\nq0.0?", "q0.1?"]
    assert [turn.content for turn in first.turns] == ["a0.0", "a0.1"]
    assert (first.turns[-1].said, first.turns[-1].pause_s) == ((), 0.0)
    assert _asked(second) == ["document 0\n\nq0.2?"]


def test_sessions_of_one_document_stand_apart(tmp_path):
    jobs = _load(_write(tmp_path, 4, 3, 1)).jobs
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
    once = _load(path, turns=turns).jobs
    answers = Counter(turn.content for job in once for turn in job.turns)
    assert len(answers) == sum(questions)
    assert {*answers.values()} == {1}
    every = _load(path, jobs=sum(questions), turns=turns).jobs
    assert len({job.messages[0]["content"] for job in every}) == sum(questions)
    assert max(len(job.turns) for job in every) <= turns
    assert every[: len(once)] == _load(path, jobs=len(once), turns=turns).jobs


@given(tokens=st.integers(1, 400), seed=st.integers(0, 9))
def test_short_replies_go_on_up_to_the_tokens(tmp_path_factory, tokens, seed):
    path = _write(tmp_path_factory.mktemp("data"), 3, 2)
    recorded, longer = (_load(path, turns=3, reply_tokens=most, seed=seed) for most in (None, tokens))
    for job, long_job in zip(recorded.jobs, longer.jobs, strict=True):
        assert _asked(job) == _asked(long_job)
        assert (job.arrival_s, [turn.pause_s for turn in job.turns]) == (
            long_job.arrival_s,
            [turn.pause_s for turn in long_job.turns],
        )
        for turn, long_turn in zip(job.turns, long_job.turns, strict=True):
            assert long_turn.content.startswith(turn.content)
            assert len(long_turn.content.split()) == pytest.approx(max(1, tokens), rel=0.01, abs=2)
    assert longer.jobs[:1] == _load(path, jobs=1, turns=3, reply_tokens=tokens, seed=seed).jobs
    assert "go on with text of ours" in longer.notes[0]


def test_repeated_sessions_are_told(tmp_path):
    path = _write(tmp_path, 3)
    assert len(_load(path).notes) == 2
    assert "2 conversations that ask each question once; 1 more" in _load(path, jobs=3).notes[-1]
    with pytest.raises(InputError, match=r"--jobs 4: .* gives 3"):
        _load(path, jobs=4)


def test_what_is_not_recorded_is_told(tmp_path):
    path = _write(tmp_path, 3)
    _, drawn, cut = _load(path, rate=0.5, dispersion=5.0, cv=0.25, scale=0.5).notes
    assert drawn.startswith("Arrivals and pauses (mean 10 s) are drawn")
    assert "coefficient of variation of 0.25, not recorded" in drawn
    assert cut == "Documents are cut to their first 50% of characters."


def test_longbench_turns_bring_their_documents(tmp_path):
    path = tmp_path / "bench.jsonl"
    entries = [{"input": "", "context": f"news {number}", "answers": [f"a{number}"]} for number in range(3)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    loaded = _load(path)
    assert [[question.split("\n\n")[0] for question in _asked(job)] for job in loaded.jobs] == [
        ["news 0", "news 1"],
        ["news 2"],
    ]
    assert "which is ours" in loaded.notes[1]


def test_arrivals_and_pauses_have_the_asked_means_and_cv(tmp_path):
    jobs = _load(_write(tmp_path, *[8] * 500), rate=0.5, cv=0.25, dispersion=10.0, turns=8).jobs
    gaps = np.diff([job.arrival_s for job in jobs])
    pauses = np.array([turn.pause_s for job in jobs for turn in job.turns[:-1]])
    assert gaps.mean() == pytest.approx(2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(0.25, rel=0.1)
    assert pauses.mean() == pytest.approx(20, rel=0.02)
    assert pauses.std() / pauses.mean() == pytest.approx(0.25, rel=0.05)


def test_conversations_end_after_some_of_their_turns(tmp_path):
    path = _write(tmp_path, *[6] * 200)
    whole, some = _load(path, turns=6), _load(path, turns=6, least_turns=3)
    lengths = [len(job.turns) for job in some.jobs]
    assert {3, 4, 5, 6} == set(lengths)
    assert np.mean(lengths) == pytest.approx(4.5, abs=0.3)
    for job, full in zip(some.jobs, whole.jobs, strict=True):
        assert job.messages == full.messages
        assert [turn.content for turn in job.turns] == [turn.content for turn in full.turns[: len(job.turns)]]


def test_only_the_seed_changes_the_times(tmp_path):
    path = _write(tmp_path, 4, 4)
    assert _load(path, seed=1).jobs == _load(path, seed=1).jobs
    one, two = _load(path, seed=1).jobs[0], _load(path, seed=2).jobs[0]
    assert one.turns[0].pause_s != two.turns[0].pause_s
    assert one.messages == two.messages


def test_the_note_has_the_mean_sizes(tmp_path):
    # Document of 2 words, then q a q a: prompts of 3 and 5.
    assert "a prompt has 4 tokens on average" in _load(_write(tmp_path, 2)).notes[0]


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
