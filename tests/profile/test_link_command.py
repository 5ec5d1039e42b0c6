"""The link as a part of `agentcache profile`: where there is one, where there is none, and where copying fails."""

from __future__ import annotations

import io
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm
from rich.console import Console
from sizes import IS_THOROUGH
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from agentcache.errors import InputError
from agentcache.models.catalog import resolve_model
from agentcache.models.shapes import TINY
from agentcache.policy import step_fit
from agentcache.policy.cost import CostModel, PrefillBatch, read_profile
from agentcache.policy.gpus import GPUS
from agentcache.policy.link_profile import LinkProfile
from agentcache.policy.presets import estimate_step_cost
from agentcache.policy.step_cost import Row
from agentcache.policy.step_fit import MeasuredStep
from agentcache.profile import command, link, link_process
from agentcache.profile.command import Measured
from agentcache.profile.link import measure_link
from agentcache.profile.link_process import LinkLayout, find_layout, measure_rows, run_link_process
from agentcache.profile.link_rows import LinkRow, fit_link
from agentcache.profile.settings import ProfileSettings

MODEL = CostModel(k1=1e-7, k2=23e-6, k3=2e-7, k4=21e-6, k5=4.3e-10, k6=8.4e-10, intercept_s=2e-3)
LLAMA = LinkLayout(pieces=32, piece_bytes=65_536)
COUNTS = (1, 64, 4096)


def make_rows(layout: LinkLayout) -> list[LinkRow]:
    """Copies at 40 and 50 GB/s after a tenth of a millisecond, and at half of that both ways at once."""
    sizes = [(count, count * layout.block_bytes / 1e9) for count in COUNTS]
    return [LinkRow(count, layout.block_bytes, 1e-4 + gb / 40, 1e-4 + gb / 50, 2e-4 + gb / 20) for count, gb in sizes]


def configure(model: str, **options: Any) -> VllmConfig:
    return EngineArgs(model=resolve_model(model).path, load_format="dummy", **options).create_engine_config()


def run(config: VllmConfig, rows_file: Path) -> tuple[LinkProfile | None, str]:
    terminal = io.StringIO()
    return measure_link(config, rows_file, Console(file=terminal, width=100)), terminal.getvalue()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[LinkLayout]:
    """A CUDA device that has everything but copies; the layouts that were asked for."""
    asked: list[LinkLayout] = []

    def run_process(layout: LinkLayout) -> list[LinkRow]:
        asked.append(layout)
        return make_rows(layout)

    platform = SimpleNamespace(is_cuda=lambda: True, get_device_name=lambda: "NVIDIA H200")
    monkeypatch.setattr(link, "current_platform", platform)
    monkeypatch.setattr(link, "run_link_process", run_process)
    return asked


@pytest.mark.parametrize(
    ("model", "options", "layout"),
    [
        ("shape:llama-3.1-8b", {}, LLAMA),
        ("shape:llama-3.1-8b", {"block_size": 32}, LinkLayout(32, 131_072)),
        ("shape:llama-3.1-8b", {"block_size": 16, "tensor_parallel_size": 2}, LinkLayout(32, 32_768)),
        # Two layers of two heads of 32.
        ("tiny", {"dtype": "float32"}, LinkLayout(2, 16 * 2 * 2 * 32 * 4)),
    ],
)
def test_blocks_are_the_models_own(model: str, options: dict[str, Any], layout: LinkLayout) -> None:
    found = find_layout(configure(model, **{"block_size": 16, **options}))
    assert found == layout
    assert found.block_bytes == layout.pieces * layout.piece_bytes


def test_without_a_cuda_device_there_is_no_link_to_measure(tmp_path: Path) -> None:
    measured, said = run(configure("tiny"), tmp_path / "rows")
    assert measured is None
    assert said == "host's memory: no link to measure, for the engine runs on no CUDA device\n"
    assert not (tmp_path / "rows").exists()


def test_with_one_it_is_measured_fitted_and_shown(gpu: list[LinkLayout], tmp_path: Path) -> None:
    section, said = run(configure("shape:llama-3.1-8b", block_size=16), tmp_path / "rows")
    assert gpu == [LLAMA]
    assert section is not None
    assert (section.pieces, section.piece_bytes) == (32, 65_536)
    assert section.source.startswith(f"agentcache profile on NVIDIA H200, vLLM {vllm.__version__}")
    assert section.source.endswith(", copies of 1 to 4,096 blocks")
    assert section.speeds == fit_link(make_rows(LLAMA))
    assert len((tmp_path / "rows").read_text().splitlines()) == len(COUNTS)
    assert section.speeds.fetch.gb_s == pytest.approx(40)
    assert "blocks of 2,097,152 bytes" in said
    assert "fetch: 0.10 ms and 40.0 GB/s, off by at most 0 %" in said
    assert "store: 0.10 ms and 50.0 GB/s, off by at most 0 %" in said
    assert "both ways at once, each keeps 44 % of that" in said


def test_what_fails_is_said_and_leaves_the_rest_to_be_measured(
    gpu: list[LinkLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LinkLayout) -> list[LinkRow]:
        raise InputError("copying ended: [no memory]")

    monkeypatch.setattr(link, "run_link_process", fail)
    measured, said = run(configure("tiny"), tmp_path / "rows")
    assert (measured, gpu) == (None, [])
    assert said.splitlines()[-1] == ("host's memory: the link is not measured: copying ended: [no memory]")


def test_models_that_no_policy_steers_are_left_out(gpu: list[LinkLayout], tmp_path: Path) -> None:
    config = configure("tiny")
    config.model_config.hf_text_config.sliding_window = 512
    config.model_config.hf_text_config.layer_types = ["sliding_attention", "full_attention"]
    measured, said = run(config, tmp_path / "rows")
    assert (measured, gpu) == (None, [])
    assert "no policy steers the host's memory of a model with windows" in said


class OneByOne:
    """A copier for which the clock of the process is good enough."""

    made: tuple[LinkLayout, int] | None = None

    def __init__(self, blocks: int, *, pieces: int, piece_bytes: int) -> None:
        OneByOne.made = LinkLayout(pieces=pieces, piece_bytes=piece_bytes), blocks

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_rows_are_of_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LinkLayout(3, 1000)
    monkeypatch.setattr(link_process, "GpuCopier", OneByOne)
    monkeypatch.setattr(link_process, "_find_room", lambda: 100 * layout.block_bytes)
    rows = measure_rows(layout)
    assert [row.blocks for row in rows] == [1, 16, 64]
    assert {row.bytes for row in rows} == {3000}
    assert OneByOne.made == (layout, 64)


def test_too_little_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_process, "_find_room", lambda: 5000)
    with pytest.raises(InputError, match=r"^5,000 bytes of memory are too few for blocks of 3,000 bytes$"):
        measure_rows(LinkLayout(3, 1000))


@pytest.mark.engine
@pytest.mark.skipif(not IS_THOROUGH, reason="it loads vLLM")
def test_a_process_that_fails_says_why() -> None:
    # No GPU has room for it, if there is one.
    with pytest.raises(InputError, match=r"^copying ended: .*(too few|CUDA|NVIDIA)"):
        run_link_process(LinkLayout(2, 2**50))


def test_rows_come_from_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends in an error, or abruptly, is an error of one line."""
    # Given no layout, whose module loads vLLM.
    layout: Any = signal.SIGKILL.value
    monkeypatch.setattr(link_process, "measure_rows", divmod)
    with pytest.raises(InputError, match=r"^copying ended: divmod expected 2 arguments, got 1$"):
        run_link_process(layout)
    monkeypatch.setattr(link_process, "measure_rows", signal.raise_signal)
    with pytest.raises(InputError, match=r"^copying ended: A process in the process pool was terminated abruptly"):
        run_link_process(layout)


@pytest.fixture
def made_steps(monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """What has been "measured", one for each run. Of the overlaps that a fit tries, only its own."""
    measured: list[Measured] = []

    def measure(*_: Any) -> Measured:
        measured.append(make_measured())
        return measured[-1]

    monkeypatch.setattr(command, "_measure", measure)
    monkeypatch.setattr(step_fit, "OVERLAPS", (5.0,))
    return measured


@pytest.mark.usefixtures("made_steps")
@pytest.mark.parametrize("on_gpu", [True, False])
def test_profile_writes_the_section_where_there_is_a_link(
    tmp_path: Path, request: pytest.FixtureRequest, on_gpu: bool
) -> None:
    if on_gpu:
        request.getfixturevalue("gpu")
    assert command.profile(ProfileSettings(model="tiny", out=tmp_path)) == 0
    (path,) = tmp_path.glob("*.json")
    section = read_profile(path).link
    assert (section is not None) == on_gpu
    assert path.with_suffix(".link.jsonl").exists() == on_gpu
    if section is not None:
        assert section.speeds.fetch.gb_s == pytest.approx(40)


def test_a_profile_is_kept_unless_it_is_to_be_replaced(tmp_path: Path, made_steps: list[Measured]) -> None:
    kept, of_another = tmp_path / "tiny_cpu_tp1_float32.json", tmp_path / "tiny_h200_tp1_bfloat16.json"
    of_another.write_text("of another engine")
    assert command.profile(ProfileSettings(model="tiny", out=tmp_path)) == 0
    kept.write_text("of yesterday")
    with pytest.raises(InputError, match=r"holds another profile of tiny on cpu, .*; give another folder, or --overwr"):
        command.profile(ProfileSettings(model="tiny", out=tmp_path))
    assert kept.read_text() == "of yesterday"
    assert len(made_steps) == 1, "refused before anything is measured"
    assert command.profile(ProfileSettings(model="tiny", out=tmp_path, overwrite=True)) == 0
    assert read_profile(kept).measured
    assert of_another.read_text() == "of another engine"


def make_measured() -> Measured:
    sizes = np.random.default_rng(7).integers(1, 4096, (200, 4)).tolist()
    batches = [PrefillBatch(*each, MODEL.predict(*each)) for each in sizes]
    cost = estimate_step_cost(TINY.geometry, GPUS["cpu"])
    rows = [[Row(query, context)] for query, context, *_ in sizes[:50]] + [
        [Row(1, each[0])] * 8 for each in sizes[50:90]
    ]
    return Measured(
        200, batches, [MeasuredStep(tuple(each), cost.step_s(each)) for each in rows], None, interrupted=False
    )
