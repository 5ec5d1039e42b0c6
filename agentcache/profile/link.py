"""Measures the link between the GPU and the host's memory, where there is one, before an engine takes the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console

from agentcache.engine.vllm.base import current_platform
from agentcache.engine.vllm.compat import installed_version
from agentcache.engine.vllm.config import VllmConfig
from agentcache.errors import InputError
from agentcache.policy.link_profile import LinkProfile
from agentcache.profile.link_display import print_link
from agentcache.profile.link_fit import FittedLink, fit_link
from agentcache.profile.link_layout import LinkLayout, find_layout
from agentcache.profile.link_process import run_link_process


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What was measured, and the profile's section made of it."""

    fitted: FittedLink
    section: LinkProfile


def measure_link(config: VllmConfig, rows_file: Path, console: Console) -> MeasuredLink | None:
    """Measure and print it, and write its rows; None, with a line that says why, where that cannot be done."""
    if not current_platform.is_cuda():
        console.print("host's memory: no link to measure, for the engine runs on no CUDA device")
        return None
    try:
        layout = find_layout(config)
        console.print("host's memory: measuring copies to the GPU and from it")
        link = fit_link(run_link_process(layout, rows_file))
    except InputError as error:
        console.print(f"host's memory: the link is not measured: {error}", style="red", markup=False)
        return None
    print_link(console, link)
    return MeasuredLink(link, _make_section(link, layout))


def _make_section(link: FittedLink, layout: LinkLayout) -> LinkProfile:
    return LinkProfile(
        source=f"agentcache profile on {current_platform.get_device_name()}, vLLM {installed_version()}, "
        f"{date.today()}, copies of {link.rows[0].blocks:,} to {link.rows[-1].blocks:,} blocks",
        pieces=layout.pieces,
        piece_bytes=layout.piece_bytes,
        speeds=link.speeds,
    )
