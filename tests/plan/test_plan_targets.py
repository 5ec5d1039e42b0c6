"""Models and GPUs of anybody's, refusals before vLLM is loaded, more traffic, and where the result goes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from made_plan import make_plan, plan_settings, run_plan
from recorded_lines import make_line, write_recording

from agentcache.cli import main
from agentcache.models.shapes import SHAPES
from agentcache.plan.stretch import bring_closer
from agentcache.policy.cost import CostProfile, read_profile, save_profile
from agentcache.policy.presets import PROFILES
from workloads.recording.reader import read_recording
from workloads.recording.sessions import build_jobs

# Of each: what is typed, and how its line on stderr begins.
REFUSED = (
    (["r.jsonl", "--gpu=a100"], "no preset for model llama-3.1-8b on gpu a100; did you mean a100-40gb or a100-80gb?"),
    (["r.jsonl", "--model=llama-3.1-8"], "no preset for model llama-3.1-8 on gpu h200; did you mean llama-3.1-8b?"),
    (["r.jsonl", "--model=./nowhere"], "model ./nowhere: there is no such folder"),
    (["missing.jsonl"], "missing.jsonl: cannot be read"),
    (["serve.log"], "serve.log: is no recording, which has a line of JSON for each request: `agentcache serve MODEL"),
    (["closed"], "closed: cannot be read"),
    (["r.jsonl", "--out=full"], "--out full: holds another plan"),
    (["r.jsonl", "--speedup=0"], "--speedup 0: give a number above 0"),
)
RUN_ALL = """
import json, sys
from agentcache.cli import main
for arguments in json.loads(sys.argv[1]):
    status = main(["plan", *arguments])
    sys.stderr.write(f"status {status}, vLLM {'vllm' in sys.modules}\\n")
"""


def test_bad_input_is_refused_before_vllm_is_loaded(tmp_path: Path) -> None:
    write_recording(tmp_path / "r.jsonl", make_line(0, 40, 5, [1, 2, 3, 4]))
    (tmp_path / "serve.log").write_text("INFO 11-30 a server starts\n")
    for folder, file in (("closed", "r.jsonl"), ("full", "plan.html")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text("{")
    typed = json.dumps([arguments for arguments, _ in REFUSED])
    run = subprocess.run(
        [sys.executable, "-c", RUN_ALL, typed], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout == ""
    lines = run.stderr.splitlines()
    refusals = [line for line in lines if not line.startswith(("agentcache: plan: reads", "status"))]
    for (_, begin), line in zip(REFUSED, refusals, strict=True):
        assert line.startswith(f"agentcache: {begin}")
    assert [line for line in lines if line.startswith("status")] == ["status 2, vLLM False"] * len(REFUSED)
    assert "agentcache profile" in refusals[0]
    assert "agentcache profile" in refusals[1]
    # What takes time says so first.
    assert lines[lines.index(refusals[3]) - 1].startswith("agentcache: plan: reads missing.jsonl, then loads vLLM")


def test_a_config_that_cannot_be_read_is_refused(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Transformers reads it, which takes ten seconds to load in a process of its own."""
    (tmp_path / "config.json").write_text("{")
    assert main(["plan", str(recording), f"--model={tmp_path}", f"--out={tmp_path}/out"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(f"agentcache: model {tmp_path}: its config cannot be read")


def test_a_published_config_is_planned_on_a_listed_gpu(recording: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    config = {**SHAPES["qwen2.5-7b"].fields, "num_hidden_layers": 24, "model_type": "qwen2"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    made = make_plan(plan_settings(recording, tmp_path / "out", model=str(folder), gpu="l4", kv_tokens=(14_000,)))
    means = [outcome.mean_s for outcome in made.outcomes]
    assert None not in means
    assert made.facts["simulated"] == f"{folder} on 1 x L4 an engine"
    assert made.facts["cost model"].startswith("estimated, not measured: NVIDIA L4 Tensor Core GPU data sheet")
    assert "`agentcache profile" in made.notes[0]
    assert "quantized" in made.notes[1]
    # A GPU with a sixth of the bandwidth of the H200.
    fast = make_plan(plan_settings(recording, tmp_path / "fast", model=str(folder), kv_tokens=(14_000,)))
    assert means[0] > 2 * fast.outcomes[0].mean_s


def test_a_measured_gpu_needs_no_data_sheet(recording: Path, tmp_path: Path) -> None:
    shipped = read_profile(next(PROFILES.glob("*.json"))).model_dump()
    key = {**shipped["key"], "gpu": "nvidia a6000"}
    profile = save_profile(CostProfile.model_validate({**shipped, "key": key}), tmp_path)
    made = make_plan(plan_settings(recording, tmp_path / "out", gpu="nvidia a6000", profile=profile))
    assert not any(outcome.problem for outcome in made.outcomes)
    assert made.facts["cost model"].startswith("measured: agentcache profile on NVIDIA H200")


def test_more_traffic_leaves_sessions_as_they_were(tmp_path: Path) -> None:
    lines = [make_line(10_000, 40, 5, [1, 2, 3, 4], session="b", latency_ms=100.0)]
    # Beside its session's other request.
    lines += [make_line(10_050, 40, 5, [11, 12, 13, 14], session="b", latency_ms=100.0)]
    lines += [make_line(12_000, 80, 5, list(range(1, 9)), session="b")]
    first = make_line(0, 40, 5, [21, 22, 23, 24], session="a")
    recording = read_recording(write_recording(tmp_path / "r.jsonl", first, *lines))
    jobs = build_jobs(recording, recording.requests).jobs
    assert [job.arrival_s for job in jobs] == [0.0, 10.0, 10.05]
    closer = bring_closer(jobs, 2.0)
    assert [job.arrival_s for job in closer] == pytest.approx([0.0, 5.0, 5.05])
    assert [[turn.context.came_s for turn in job.turns] for job in closer] == [[0.0], [5.0, 7.0], [pytest.approx(5.05)]]
    assert [[turn.pause_s for turn in job.turns] for job in closer] == [
        [turn.pause_s for turn in job.turns] for job in jobs
    ]


def test_twice_the_traffic_takes_longer(recording: Path, tmp_path: Path) -> None:
    settings = plan_settings(recording, tmp_path, policies=("vllm",), kv_tokens=(7_000,))
    once, thrice = (make_plan(replace(settings, speedup=each, out=tmp_path / str(each))) for each in (1.0, 3.0))
    assert thrice.outcomes[0].mean_s > once.outcomes[0].mean_s
    assert thrice.facts["traffic"].endswith("sessions 3 times as close together")
    assert mean(each.jobs for each in thrice.outcomes) == mean(each.jobs for each in once.outcomes)


@pytest.mark.usefixtures("without_simulations")
def test_each_plan_has_a_folder_of_its_own(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = plan_settings(recording, None, policies=("lru",), kv_tokens=(7_000,))
    assert run_plan(settings) == run_plan(settings) == 0
    assert sorted(str(page) for page in Path().rglob("plan.html")) == ["runs/plan-1/plan.html", "runs/plan-2/plan.html"]
    assert "plan: runs/plan-2/plan.html" in capsys.readouterr().out


def test_json_alone_is_on_stdout(recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(recording), "--policy=lru", "--kv-tokens=7000", "--cpu-tokens=0", f"--out={tmp_path}/out"]
    assert main([*command, "--gpu=NVIDIA A100-SXM4-80GB", "--json"]) == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert result["version"] == 1
    assert result["page"] == f"{tmp_path}/out/plan.html"
    assert result["facts"]["simulated"] == "llama-3.1-8b on 1 x A100-80GB an engine"
    (outcome,) = result["outcomes"]
    assert (outcome["policy"], outcome["kv_tokens"], outcome["cpu_tokens"], outcome["engines"]) == ("lru", 6992, 0, 1)
    assert outcome["mean_s"] > 0
    assert 0 < outcome["hit_rate"] <= outcome["endless_hits"] < 1
    assert "Read from" in err
    assert "1/1 simulated: lru, 6,992 tokens" in err
