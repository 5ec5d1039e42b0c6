from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_command import make_sessions, make_settings
from made_recordings import make_requests
from shown_page import read_page
from vllm.config import VllmConfig

from agentcache.config import AgentCacheConfig
from agentcache.engine.blocks.evictor_inputs import build_inputs
from agentcache.errors import InputError
from agentcache.policy.registry import EvictorInputs
from agentcache.report.content import HTML_FILE, SUMMARY_FILE
from agentcache.report.events import EVENTS_FILE, RUN_FILE, JobEvent, read_events, read_run_record
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.report.summary import Summary
from agentcache.run.display import ReplayDisplay
from agentcache.sim import command
from agentcache.sim.command import simulate
from agentcache.sim.delays import MEASURED_FRONT_END

pytestmark = pytest.mark.usefixtures("without_plots")

FILES = {RUN_FILE, EVENTS_FILE, SUMMARY_FILE, HTML_FILE}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, without_plots: None) -> tuple[Path, Summary]:  # noqa: ARG001
    """One run of both policies in a cache that cannot hold all jobs, so that blocks go and requests are preempted."""
    out = tmp_path_factory.mktemp("simulation") / "out"
    status, summary = simulate(make_settings(out, policies=("vllm", "lru")))
    assert status == 0
    return out, summary


def read(out: Path) -> dict[str, PolicyRun]:
    return group_by_policy(read_events(out))


def mean(summary: Summary) -> float:
    latency = summary.policies["lru"].job_latency_s
    assert latency.mean is not None
    return latency.mean


def test_bfcl_from_end_to_end(both: tuple[Path, Summary]) -> None:
    out, summary = both
    assert {path.name for path in out.iterdir()} >= FILES
    assert list(summary.policies) == ["vllm", "lru"]
    figures = summary.policies["lru"]
    assert (figures.jobs, figures.finished, figures.diverged_prompts) == (12, 12, 0)
    assert figures.recomputed_tokens
    assert figures.preemptions
    assert 0 < (figures.block_hit_rate or 0) < 1
    record = read_run_record(out)
    assert record.device == "simulated NVIDIA H200 (measured cost model)"
    assert (record.model, record.cache_tokens, record.jobs) == ("llama-3.1-8b", 6_992, 12)
    assert "simulated NVIDIA H200" in read_page(out / HTML_FILE)


def test_times_of_a_run_fit_together(both: tuple[Path, Summary]) -> None:
    run = read(both[0])["lru"]
    for request in run.requests:
        assert request.queue_s is not None
        assert request.prefill_s is not None
        assert request.decode_s is not None
        # The rest is the API server's, more of it the more requests it has.
        in_engine_s = request.queue_s + request.prefill_s + request.decode_s
        on_the_way_s = request.finished_s - request.sent_s - in_engine_s
        least_s, most_s = (
            MEASURED_FRONT_END.request_delay_s(request.prompt_tokens, beside) + MEASURED_FRONT_END.reply_delay_s(beside)
            for beside in (0, len(run.jobs))
        )
        assert least_s - 1e-9 < on_the_way_s < most_s
    sent = {(request.job, request.turn): request for request in run.requests}
    for (job, turn), request in sent.items():
        calls = [call for call in run.tool_calls if (call.job, call.turn) == (job, turn)]
        assert all(call.started_s == request.finished_s for call in calls)
        if calls:
            assert sent[job, turn + 1].sent_s == max(call.finished_s for call in calls)
    assert run.end is not None
    assert run.end.engine_startup_s is None
    assert 0 < (run.end.prefill_s or 0) < max(job.finished_s for job in run.jobs)


def test_policies_vllm_and_lru_are_told_apart_by_name_only(both: tuple[Path, Summary]) -> None:
    lines = (both[0] / EVENTS_FILE).read_text().splitlines()
    stock = [line for line in lines if '"policy":"vllm"' in line]
    # vLLM's own list counts no evictions.
    told = [re.sub(r'"evictions":\{[^}]*\}', '"evictions":null', line) for line in lines]
    ours = [line.replace('"policy":"lru"', '"policy":"vllm"') for line in told if '"policy":"lru"' in line]
    assert ours == stock
    assert len(stock) == len(lines) / 2


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("same", 0), ("other", 1)):
        simulate(make_settings(tmp_path / name, policies=("vllm", "lru"), jobs=4, seed=seed))
    expected = (tmp_path / "first" / EVENTS_FILE).read_bytes()
    assert (tmp_path / "same" / EVENTS_FILE).read_bytes() == expected
    assert (tmp_path / "other" / EVENTS_FILE).read_bytes() != expected


def test_faster_gpu_and_larger_cache_finish_jobs_sooner(both: tuple[Path, Summary], tmp_path: Path) -> None:
    def mean_latency(name: str, **changes: Any) -> float:
        _, summary = simulate(make_settings(tmp_path / name, **changes))
        return mean(summary)

    assert mean_latency("slow", gpu="h20") > mean(both[1]) > mean_latency("large", kv_tokens=200_000)


def test_policy_is_told_of_the_simulated_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(vllm_config: VllmConfig, config: AgentCacheConfig, *sizes: int, fills_gaps: bool) -> EvictorInputs:
        seen.append((config.gpu, config.lifespan_s, vllm_config.parallel_config.tensor_parallel_size))
        return build_inputs(vllm_config, config, *sizes, fills_gaps=fills_gaps)

    monkeypatch.setattr("agentcache.engine.setup.parts.build_inputs", spy)
    knobs = {"lifespan_s": 7.0}
    settings = make_settings(
        tmp_path, policies=("asymcache",), gpu="h20", tensor_parallel_size=2, knobs=knobs, jobs=1, scale=0.02
    )
    assert simulate(settings)[0] == 0
    assert set(seen) == {("h20", 7.0, 2)}
    assert read_run_record(tmp_path).settings["lifespan_s"] == 7.0


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Have SIGINT interrupt: a shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_interrupted_run_keeps_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tell = ReplayDisplay.job_ended

    def interrupt(display: ReplayDisplay, event: JobEvent) -> None:
        tell(display, event)
        if event.status == "finished":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ReplayDisplay, "job_ended", interrupt)
    out = tmp_path / "out"
    status, summary = simulate(make_settings(out))
    assert status == 130
    states = [job.status for job in read(out)["lru"].jobs]
    assert states.count("finished") == 1
    assert states.count("interrupted") > 1
    assert summary.policies["lru"].finished == 1
    assert (out / HTML_FILE).is_file()
    assert "interrupted: the jobs that finished are in the report" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ()}, "simulate: give at least one --policy"),
        ({"policies": ("lru", "lru")}, "--policy: the same policy is given twice"),
        ({"policies": ("fifo",)}, "--policy fifo: unknown; choose from"),
        ({"workload": "none"}, "workload none: unknown"),
        (
            {"gpu": "h2000"},
            "no preset for model llama-3.1-8b on gpu h2000; did you mean h200?; GPUs of that model are h20",
        ),
        ({"model": "llama-2"}, "no preset for model llama-2 on gpu h200; did you mean llama-"),
        ({"kv_tokens": 0}, "--kv-tokens 0: give the number of tokens"),
        ({"kv_tokens": 2000}, "--kv-tokens: job web_search_"),
        ({"scale": 9.0}, "--scale 9: give a number above 0"),
        ({"jobs": 0}, "--jobs 0: give at least 1"),
        ({"rate": -1.0}, "--rate -1: give a number above 0"),
        ({"seed": -1}, "--seed -1: give 0 or more"),
        ({"block_size": 0}, "--block-size 0: give at least 1"),
        ({"block_size": 0, "kv_tokens": None}, "--block-size 0: give at least 1"),
        ({"max_num_batched_tokens": 100}, "--max-num-batched-tokens 100: give at least --max-num-seqs"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size 3: must divide"),
        ({"knobs": {"lifespan": 3.0}}, "additional_config: agentcache.lifespan: no such knob"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(make_settings(tmp_path / "out", **changes))
    text = str(caught.value)
    assert text.startswith(message)
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


def test_folder_of_another_run_is_refused_unless_overwritten(tmp_path: Path) -> None:
    small = {"jobs": 1, "scale": 0.02, "tool_latency": "0"}
    simulate(make_settings(tmp_path, **small))
    with pytest.raises(InputError, match="holds another run"):
        simulate(make_settings(tmp_path, **small))
    status, summary = simulate(make_settings(tmp_path, **small, overwrite=True))
    assert (status, summary.policies["lru"].jobs) == (0, 1)


def test_a_run_that_began_there_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds from the check of the settings to the first event."""
    record = tmp_path / RUN_FILE
    prepare = command._describe

    def begin_another(*settings: Any) -> Any:
        record.write_text("another's")
        return prepare(*settings)

    monkeypatch.setattr(command, "_describe", begin_another)
    with pytest.raises(InputError, match="holds another run"):
        simulate(make_settings(tmp_path, jobs=1, scale=0.02, tool_latency="0"))
    assert record.read_text() == "another's"


def test_the_record_names_the_second_cache(tmp_path: Path) -> None:
    small = {"jobs": 1, "scale": 0.02, "tool_latency": "0"}
    simulate(make_settings(tmp_path / "one", **small))
    simulate(make_settings(tmp_path / "two", **small, cpu_tokens=40_000))
    assert "cpu_tokens" not in read_run_record(tmp_path / "one").settings
    settings = read_run_record(tmp_path / "two").settings
    assert (settings["cpu_tokens"], settings["cpu_lazy"]) == (40_000, False)
    assert "tokens, and 40,000 in the CPU cache." in read_page(tmp_path / "two" / HTML_FILE)


def test_sessions_without_text_from_end_to_end(tmp_path: Path) -> None:
    workload = make_sessions(tmp_path / "sessions.jsonl")
    out = tmp_path / "out"
    settings = make_settings(out, workload=workload, kv_tokens=2000, policies=("vllm", "lru"))
    status, summary = simulate(settings)
    figures = summary.policies["lru"]
    assert (status, figures.finished, figures.turns, figures.diverged_prompts) == (0, 6, 48, 0)
    assert 0 < (figures.token_hit_rate or 0) < 1
    assert figures.recomputed_tokens
    assert figures.token_hit_rate == summary.policies["vllm"].token_hit_rate
    assert read_run_record(out).workload == workload


def test_a_session_beyond_the_cache_names_the_flag_that_cuts_it(tmp_path: Path) -> None:
    path = make_requests(tmp_path / "trace.jsonl", (1, 2), tuple(range(120)))
    needs = r"--kv-tokens: job 1-request-2 needs 1207 tokens.*, or a smaller --max-context"
    with pytest.raises(InputError, match=needs):
        simulate(make_settings(tmp_path / "out", workload=f"recording:{path}", kv_tokens=1100))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kv_tokens", "limits"),
    [
        (2000, "the model takes 131072 and the cache holds 2000; give --max-context 2000 or less"),
        (140_000, "the model takes 131072; give --max-context 131072 or less"),
    ],
)
def test_a_session_beyond_the_model_is_told_the_lower_limit(kv_tokens: int, limits: str, tmp_path: Path) -> None:
    path = make_requests(tmp_path / "trace.jsonl", (1, 2), tuple(range(15_000)))
    with pytest.raises(InputError) as caught:
        simulate(make_settings(tmp_path / "out", workload=f"recording:{path}", kv_tokens=kv_tokens))
    assert re.fullmatch(rf"recording:\S+: job 1-request-2 needs \d+ tokens, {limits}", str(caught.value))


def test_a_broken_recording_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("{")
    with pytest.raises(InputError) as caught:
        simulate(make_settings(tmp_path / "out", workload=f"recording:{path}", kv_tokens=2000))
    assert str(caught.value).startswith(f"{path}:1: ")
    assert list(tmp_path.iterdir()) == [path]


def test_two_caches_split_the_hit_rate(tmp_path: Path) -> None:
    out, knobs = tmp_path / "out", {"tier": {"enabled": True, "link_gb_s": 1e4}, "tuning": {"link_latency_s": 0.0}}
    _, summary = simulate(make_settings(out, policies=("vllm", "agentcache"), cpu_tokens=14_000, knobs=knobs))
    for policy, run in read(out).items():
        assert run.end is not None
        assert run.end.hit_tokens is not None
        assert sum(run.end.hit_tokens.values()) == sum(request.cached_tokens or 0 for request in run.requests)
        assert run.end.hit_tokens["host"] > 0
        assert (run.end.waits_s is None) is (policy == "vllm")
        assert sum((run.end.waits_s or {}).values()) <= sum(request.queue_s or 0.0 for request in run.requests)
        figures = summary.policies[policy]
        assert (figures.gpu_hit_rate or 0) + (figures.host_hit_rate or 0) == pytest.approx(figures.token_hit_rate)
    assert "fetched from the CPU cache" in read_page(out / HTML_FILE)


def test_one_cache_is_no_reason_to_split(both: tuple[Path, Summary]) -> None:
    out, summary = both
    assert {run.end.hit_tokens for run in read(out).values() if run.end} == {None}
    assert {figures.host_hit_rate for figures in summary.policies.values()} == {None}
    assert "fetched from the CPU cache" not in read_page(out / HTML_FILE)
