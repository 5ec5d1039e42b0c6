"""In which order `benchmarks/paper_70b.py` runs its rows, what it skips, and what it has no time for."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import paper_70b
import pytest
from paper_70b_commands import list_cpu_options, list_words
from paper_70b_rows import BFCL, PROFILE, REPLIES, SESSIONS, Row, choose_next, find_row, list_rows, make_table
from result_lines import Run

from agentcache.errors import InputError


def make_run(row: Row, wall_s: float = 100.0) -> Run:
    names = ("mean_job_s", "p90_job_s", "ttft_mean_s", "ttft_p99_s", "hit_rate")
    return Run(
        date="2026-11-30",
        commit="dd7177d",
        vllm="0.32.0",
        where="GPU: H200",
        gpus=4,
        workload=row.workload,
        parameters={"cache_tokens": 250_000, "cpu_cache_tokens": 250_000 * row.cached},
        model="llama-3.1-70b",
        seeds=[row.seed] if row.seed else None,
        policy=row.policy,
        flags=[],
        figures={**dict.fromkeys(names, 0.5), "wall_s": wall_s},
        source="a command",
    )


def make_options(out: Path, **changes: Any) -> Namespace:
    options = {
        "simulate": False,
        "model": "llama-3.1-70b",
        "gpu": "h200",
        "tensor_parallel_size": 4,
        "jobs": 40,
        "scale": 1.0,
        "faster": 1.0,
        "profile_s": 240.0,
        "limit_s": 1800.0,
        "commit": "dd7177d",
        "documents": out / "loogle.jsonl",
        "out": out,
    }
    return Namespace(**options | changes)


def test_what_matters_most_runs_first() -> None:
    rows = list_rows([510, 511], measured=True)
    assert [row.name for row in rows[:5]] == [
        PROFILE,
        "bfcl-510-vllm",
        "bfcl-510-agentcache",
        "bfcl-510-continuum-code",
        "bfcl-cached-510-agentcache",
    ]
    assert [row.seed for row in rows if row.seed] == [510] * 8 + [511] * 8
    assert [row.workload for row in rows[6:10]] == [REPLIES, *[SESSIONS] * 3]
    assert len({row.name for row in rows}) == len(rows) == 18
    assert list_rows([510, 511], measured=False) == [row for row in rows if row.seed]


@pytest.mark.parametrize("row", list_rows([510, 511], measured=True), ids=lambda row: row.name)
def test_a_row_is_found_by_its_line(row: Row) -> None:
    assert find_row(Run.parse(json.dumps(asdict(make_run(row))))) == row


def test_nothing_begins_that_would_end_too_late() -> None:
    left = [Row(SESSIONS, "lru", 510), Row(BFCL, "vllm", 511)]
    assert choose_next(left, {}, 5000) == left[0]
    assert choose_next(left, {}, 400) == left[1]
    assert choose_next(left, {}, 100) is None
    # A row that has ended says how long its likes take.
    seen = {row: make_run(row, wall_s) for row, wall_s in ((Row(BFCL, "vllm", 510), 90.0), (Row(BFCL, "lru"), 60.0))}
    assert choose_next(left, seen, 100) == left[1]
    assert choose_next(left, seen, 80) is None


def test_the_table_has_what_ended_failed_and_never_ran() -> None:
    done, failed, never = Row(BFCL, "agentcache", 510, cached=True), Row(BFCL, "vllm", 510), Row(REPLIES, "agentcache")
    table = make_table([done, failed, never], {done: make_run(done)}, {failed.name: "no room\n| at all"})
    assert table.splitlines()[2:] == [
        "| bfcl-cached-510-agentcache | 250k + 250k | 0.5 | 0.5 | 0.50 | 0.5 | 50 % | 100 |  |",
        "| bfcl-510-vllm | – | – | – | – | – | – | – | failed: no room / at all |",
        "| replies | – | – | – | – | – | – | – | not run |",
    ]


def test_rows_are_skipped_and_failed_ones_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def execute(_: object, log: Path) -> None:
        begun.append(log.stem)
        if log.stem == "bfcl-510-vllm" and begun.count(log.stem) == 1:
            raise RuntimeError("exit status 1")

    monkeypatch.setattr(paper_70b, "execute", execute)
    monkeypatch.setattr(paper_70b, "read_line", lambda row, *_: make_run(row))
    rows, options = [Row(BFCL, policy, 510) for policy in ("vllm", "agentcache")], make_options(tmp_path)
    assert "failed: exit status 1" in paper_70b.run_all(rows, options)
    assert "failed" not in paper_70b.run_all(rows, options)
    paper_70b.run_all(rows, options)
    assert begun == ["bfcl-510-vllm", "bfcl-510-agentcache", "bfcl-510-vllm"]


def test_each_policy_has_its_best_cpu_cache(tmp_path: Path) -> None:
    options = make_options(tmp_path)
    assert list_cpu_options(Row(BFCL, "vllm", 510), options) == []
    _, ours = list_cpu_options(Row(BFCL, "agentcache", 510, cached=True), options)
    _, stock = list_cpu_options(Row(BFCL, "vllm", 510, cached=True), options)
    extra = json.loads(stock)["kv_connector_extra_config"]
    # 80 layers, 8 heads, 128 numbers of keys and of values, two bytes each.
    assert extra == {"cpu_bytes_to_use": 250_000 * 80 * 8 * 256 * 2, "lazy_offload": True}
    assert float(ours) * 2**30 == extra["cpu_bytes_to_use"]


def test_runs_take_their_costs_from_the_profile(tmp_path: Path) -> None:
    row, options = Row(BFCL, "agentcache", 510), make_options(tmp_path)
    assert not [word for word in list_words(row, options) if "cost_profile" in word]
    (tmp_path / PROFILE).mkdir()
    profile = tmp_path / PROFILE / "some.json"
    profile.touch()
    assert f"cost_profile={profile}" in list_words(row, options)
    assert list_words(row, options)[-3:] == ["--", "--tensor-parallel-size", "4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scale", "2"], "--scale 2: give at most 1"),
        (["--jobs", "0"], "--jobs 0: give more than 0"),
        (["--commit", "main"], "--commit 'main': give the seven digits"),
        ([], "--documents none.jsonl: is no file"),
    ],
)
def test_bad_options_are_refused(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["paper_70b.py", "--documents", "none.jsonl", "--out", "out", *words])
    with pytest.raises(InputError) as caught:
        paper_70b.check(paper_70b.read_options())
    assert str(caught.value).startswith(message)
