"""The wheel, installed in a folder of its own beside vLLM: what a user has who has no checkout."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Kept, so that only what has changed is compiled.
BUILD = ROOT / "build" / "wheel"
# What installed the checkout puts itself before all of the path.
HIDE_CHECKOUT = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
"""


def install_wheel(folder: Path) -> Path:
    """Build the wheel, install it alone, and return what to have on the path before anything else."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--config-settings", f"build-dir={BUILD}")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD.parent / "wheel.lock").open("w") as lock:
        # The workers of a test run share the build.
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([*pip, *build, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("vllm_agentcache-*.whl")
    site = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--no-compile", "--target", str(site), str(wheel)], check=True)
    (site / "sitecustomize.py").write_text(HIDE_CHECKOUT)
    environment = without_checkout(site)
    for module in ("agentcache", "agentcache._evictor", "tool_runtime", "workloads"):
        command = [sys.executable, "-c", f"import {module} as module; print(module.__file__)"]
        done = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True)
        assert Path(done.stdout.strip()).is_relative_to(site)
    return site


def without_checkout(site: Path, *others: Path) -> dict[str, str]:
    """Return the environment of a process that finds agentcache in `site` alone."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, *others)))}
