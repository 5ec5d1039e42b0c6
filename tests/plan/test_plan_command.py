from __future__ import annotations

import json
import re
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from made_plan import plan_settings, run_plan

from agentcache.cli import main
from agentcache.errors import InputError
from agentcache.plan.settings import Cell, Outcome
from agentcache.plan.sweep import Pool, WorkerEndedError, find_fewest, order_starts
from agentcache.plan.table import (
    CONTINUUM,
    CONTINUUM_TTFT_PAIRS,
    CONTINUUM_TTFT_SHARE,
    HIT_POINTS,
    KNOWN_ERROR,
    P90_PAIRS,
    P90_SHARE,
    TTFT_PAIRS,
    TTFT_SHARE,
)
from agentcache.plan.worker import Worker
from agentcache.report.verdict import SIMULATOR_ERROR
from workloads.recording.reader import read_recording
from workloads.recording.sessions import build_jobs


def test_a_plan_shows_each_policy_with_each_cache(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_plan(plan_settings(recording, tmp_path / "out")) == 0
    page = (tmp_path / "out" / "plan.html").read_text()
    assert re.findall(r"Cache of [\d,]+ tokens|(?<=>)(?:vllm|agentcache)(?=</th>)", page.partition("<main>")[2]) == [
        "Cache of 6,992 tokens",
        "vllm",
        "agentcache",
        "Cache of 14,000 tokens",
        "vllm",
        "agentcache",
    ]
    assert "Known error of the simulator" in page
    assert "Cache of 6,992 tokens: too few jobs: 12 under vllm and agentcache" in page
    assert "The contexts of all jobs at once came to" in page
    lines = capfd.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if "/" not in line)
    shown = " ".join(" ".join(lines).split())
    assert shown.count("agentcache") >= 2
    assert re.match(r"Read from .*: traffic: \d+ requests in \d+ s, \d+ jobs; tokens: [\d,]+ of prompts", shown)
    # By its name alone: the folder was one of who recorded.
    assert "Simulated: llama-3.1-8b on 1 x H200 an engine. Recorded: llama-3.1-8b-" in shown
    assert "plan.html" in shown


@pytest.mark.parametrize(("policy", "host"), [("vllm", 0), ("agentcache", 14_000)])
def test_what_saves_time_changes_no_outcome(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, host: int
) -> None:
    """The oracle is vLLM's own block pool, with hashes that are made anew and everything that is counted."""
    settings = plan_settings(recording, tmp_path)
    read = read_recording(recording)
    jobs = build_jobs(read, read.requests, max_context=7_000).jobs
    cell = Cell(policy, 6_992, host)
    worker = Worker(settings, jobs)
    found = [worker.run(cell), worker.run(cell)]
    replaced = []
    monkeypatch.setattr("agentcache.sim.engine.quicken", replaced.append)
    monkeypatch.setattr("agentcache.sim.engine._leave_out_counts", replaced.append)
    assert found == [Worker(settings, jobs).run(cell)] * 2
    assert len(replaced) == 2
    assert found[0].mean_s is not None
    assert 0 < found[0].hit_rate <= found[0].endless_hits


def test_hits_stay_below_those_of_an_endless_cache(recording: Path, tmp_path: Path) -> None:
    seen: list[Outcome] = []
    kept = Pool._book

    def book(pool: Pool, future: Any) -> None:
        seen.append(future.result())
        kept(pool, future)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "_book", book)
        run_plan(plan_settings(recording, tmp_path, policies=("lru",), kv_tokens=(7_000, 1_000_000)))
    small, large = sorted(seen, key=lambda outcome: outcome.cell.kv_tokens)
    assert small.hit_rate < large.hit_rate <= large.endless_hits
    assert large.hit_rate == pytest.approx(large.endless_hits, abs=0.02)


def test_ctrl_c_leaves_what_is_done_as_a_page(recording: Path, tmp_path: Path) -> None:
    run, cells = Worker.run, []

    def interrupt(worker: Worker, cell: Cell) -> Outcome:
        cells.append(cell)
        if len(cells) == 1:
            return run(worker, cell)
        raise KeyboardInterrupt

    kept = Pool.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "run", interrupt)
        # One after the other, as processes would be done.
        patch.setattr(Pool, "run", lambda pool, wanted: [kept(pool, [cell]) for cell in wanted] and None)
        assert run_plan(plan_settings(recording, tmp_path)) == 130
    page = (tmp_path / "plan.html").read_text()
    assert "The plan was interrupted" in page
    assert page.count(">vllm</th>") == 1
    assert page.count(">agentcache</th>") == 0


def test_ctrl_c_before_the_first_end_leaves_nothing(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pool, "run", interrupt)
    assert run_plan(plan_settings(recording, tmp_path / "out")) == 130
    assert "interrupted before anything was simulated: there is no page" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_the_table(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    page.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        run_plan(plan_settings(recording, tmp_path, policies=("lru",), overwrite=True))
    assert "\nlru " in capsys.readouterr().out
    assert not page.is_symlink()


@pytest.mark.parametrize("ended_at", [1, 2])
def test_a_killed_worker_leaves_what_is_done(recording: Path, tmp_path: Path, ended_at: int) -> None:
    run, cells = Worker.run, []

    def be_killed(worker: Worker, cell: Cell) -> Outcome:
        cells.append(cell)
        if len(cells) == ended_at:
            raise BrokenProcessPool
        return run(worker, cell)

    kept = Pool.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "run", be_killed)
        patch.setattr(Pool, "run", lambda pool, wanted: [kept(pool, [cell]) for cell in wanted] and None)
        with pytest.raises(WorkerEndedError, match="--workers: a process that simulated was ended"):
            run_plan(plan_settings(recording, tmp_path))
    page = tmp_path / "plan.html"
    assert page.exists() == (ended_at == 2)
    assert ended_at == 1 or page.read_text().count(">vllm</th>") == 1


@pytest.mark.usefixtures("without_simulations")
def test_gpus_are_counted_for_a_target(recording: Path, tmp_path: Path) -> None:
    settings = plan_settings(recording, tmp_path, policies=("lru",), kv_tokens=(7_000,), max_gpus=4)
    assert run_plan(replace(settings, target_s=1e6)) == 0
    assert "lru: 1 GPU for a mean job latency of 1e+06 s" in (tmp_path / "plan.html").read_text()
    assert run_plan(replace(settings, target_s=1e-3, overwrite=True)) == 0
    assert "lru: more than 4 for a mean job latency of 0.001 s" in (tmp_path / "plan.html").read_text()


def read_errors() -> list[dict[str, Any]]:
    """Read the runs that were simulated beside a GPU's, of which the results tell."""
    lines = (Path(__file__).parents[2] / "results" / "simulator-error.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def list_pairs(runs: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """List what was simulated, and what a GPU gave."""
    figures = [run["figures"] for run in runs if f"measured_{name}" in run["figures"]]
    return [(found[name], found[f"measured_{name}"]) for found in figures]


def test_the_known_error_covers_what_is_published() -> None:
    """Of plans beside a GPU."""
    plans = [run for run in read_errors() if run["flags"] == ["planned from a recording of vllm"]]
    means, hits = list_pairs(plans, "mean_job_s"), list_pairs(plans, "hit_rate")
    assert len(means) == len(hits) >= 14
    assert max(abs(planned / measured - 1) for planned, measured in means) <= SIMULATOR_ERROR
    assert 100 * max(abs(planned - measured) for planned, measured in hits) == pytest.approx(HIT_POINTS, abs=0.5)


def test_known_errors_of_tails_are_those_published() -> None:
    """They are rounded up."""
    runs = [run for run in read_errors() if run["source"].endswith("#p90-and-first-tokens")]
    slow = [run for run in runs if run["policy"].startswith(CONTINUUM)]
    others = [run for run in runs if run not in slow]
    p90, bounded, unbounded = (
        [abs(measured / simulated - 1) for simulated, measured in list_pairs(some, name)]
        for some, name in ((runs, "p90_job_s"), (others, "ttft_p99_s"), (slow, "ttft_p99_s"))
    )
    assert (len(p90), len(bounded), len(unbounded)) == (P90_PAIRS, TTFT_PAIRS, CONTINUUM_TTFT_PAIRS)
    assert P90_SHARE - 0.01 < max(p90) <= P90_SHARE
    assert TTFT_SHARE - 0.05 < max(bounded) <= TTFT_SHARE
    assert CONTINUUM_TTFT_SHARE - 0.05 < max(unbounded) <= CONTINUUM_TTFT_SHARE
    halves = map(int, re.findall(r"half within (\d+) %", KNOWN_ERROR))
    for said, shares in zip(halves, (p90, bounded, unbounded), strict=True):
        assert 0.9 * said <= 100 * median(shares) <= said


@pytest.mark.parametrize(
    ("needed", "most", "found"), [(1, 16, 1), (5, 16, 5), (16, 16, 16), (9, 11, 9), (12, 11, None)]
)
def test_the_fewest_engines_are_found(needed: int, most: int, found: int | None) -> None:
    asked = []

    def run(cell: Cell) -> Outcome:
        asked.append(cell.engines)
        return Outcome(cell, 1, 1.0 if cell.engines >= needed else 3.0, None, None, 0.0, 0.0, 0.0)

    assert find_fewest(run, Cell("lru", 1000), 2.0, most) == found
    assert len(asked) <= 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ("nope",)}, "nope"),
        ({"kv_tokens": (0,)}, "--kv-tokens 0: give"),
        ({"kv_tokens": (1,)}, "--kv-tokens 1: give at least one block of 16 tokens"),
        ({"cpu_tokens": (5,)}, "--cpu-tokens 5: give 0, or at least two blocks of 16 tokens each"),
        ({"replicas": (1, 0)}, "--replicas 0: give 1 to 64 engines"),
        ({"replicas": (-1,)}, "--replicas -1: give 1 to 64 engines"),
        ({"replicas": (65,)}, "--replicas 65: give 1 to 64 engines"),
        ({"routing": "nearest"}, "--routing nearest: choose from agentcache, least-loaded, sticky"),
        ({"target_s": 1.0, "max_gpus": 100}, "--max-gpus 100: that is 100 engines, and at most 64 are simulated"),
        ({"target_s": 1.0, "max_gpus": 1, "tensor_parallel_size": 2}, "--max-gpus 1: an engine has 2; give at least"),
        ({"requests": 0}, "--requests 0: give at least 1"),
        ({"target_s": 0.0}, "--target 0: give a mean job latency in seconds, above 0"),
        ({"gpu": "tpu"}, "no preset for model llama-3.1-8b on gpu tpu"),
        ({"kv_tokens": (16,)}, "the longest has"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, recording: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        run_plan(plan_settings(recording, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


def test_a_plan_is_replaced_only_by_who_says_so(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    page.write_text("an hour of simulations")
    command = ["plan", str(recording), "--policy=lru", "--kv-tokens=7000", "--cpu-tokens=0", f"--out={tmp_path}"]
    assert main(command) == 2
    refusal = f"--out {tmp_path}: holds another plan; give another folder, or --overwrite to replace it"
    assert capsys.readouterr().err == f"agentcache: {refusal}\n"
    assert page.read_text() == "an hour of simulations"
    assert main([*command, "--overwrite"]) == 0
    assert ">lru</th>" in page.read_text()


def test_longest_simulations_begin_early(recording: Path, tmp_path: Path) -> None:
    cells = plan_settings(recording, tmp_path, cpu_tokens=()).list_cells()
    begun = order_starts(cells)
    assert sorted(begun, key=cells.index) == cells
    assert [(cell.policy, bool(cell.cpu_tokens)) for cell in begun[:4]] == [
        ("vllm", False),
        ("agentcache", True),
        ("vllm", True),
        ("agentcache", False),
    ]
