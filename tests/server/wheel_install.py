"""The wheel in an environment of its own, as a user has it who has no checkout.

`make wheel` creates the environment: the wheel, and links to what it requires (tests/server/linked_packages.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
# Kept, so that only what has changed is compiled.
BUILD = ROOT / "build" / "wheel"
PACKAGES = ("agentcache", "tool_runtime", "workloads")
COMMANDS = Path(sys.prefix) / "wheel" / "bin"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def install_wheel() -> Path:
    """Return the folder of the environment's commands; where the checkout has changed, its wheel is installed anew."""
    assert (COMMANDS / "agentcache").is_file(), "there is no environment with the wheel: run `make wheel`"
    (site,) = COMMANDS.parent.glob("lib/python3*/site-packages")
    if read_installed(site) != read_checkout():
        replace_wheel()
    assert read_installed(site) == read_checkout(), "the wheel has other files than the checkout"
    return COMMANDS


def read_installed(site: Path) -> dict[str, bytes]:
    return read_sources(site) | {"_evictor": b"".join(path.read_bytes() for path in site.glob("agentcache/*.so"))}


def read_checkout() -> dict[str, bytes]:
    compiled = find_spec("agentcache._evictor")
    assert compiled is not None
    assert compiled.origin is not None
    return read_sources(ROOT) | {"_evictor": Path(compiled.origin).read_bytes()}


def read_sources(root: Path) -> dict[str, bytes]:
    paths = [path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.suffix not in (".pyc", ".so")}


def replace_wheel() -> None:
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--config-settings", f"build-dir={BUILD}")
    install = ("--python", str(COMMANDS / "python"), "install", "--quiet", "--no-deps", "--force-reinstall")
    with TemporaryDirectory() as folder:
        subprocess.run([*PIP, *build, "--wheel-dir", folder, str(ROOT)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        subprocess.run([*PIP, *install, str(wheel)], check=True)


def without_checkout(*others: Path) -> dict[str, str]:
    """Return the environment variables of a process that finds these folders, and nothing of the checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, others))}
