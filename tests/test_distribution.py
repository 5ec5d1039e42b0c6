"""The sdist and the wheel that is built from it: what `python -m build` gives, but for what is compiled."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("agentcache", "tool_runtime", "workloads")
# One of each kind of file that is no module.
DATA = (".css", ".js", ".json", ".jinja", ".pyi", "py.typed")
BUILD_SDIST = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


# What `git clone` does not give, and takes long to walk.
LEFT_OUT = ("build", "dist", "runs", "__pycache__", "*.so")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    clone = shutil.copytree(ROOT, folder / "clone", ignore=leave_out)
    subprocess.run([sys.executable, "-c", BUILD_SDIST, str(folder)], cwd=clone, check=True, capture_output=True)
    (archive,) = folder.glob("vllm_agentcache-*.tar.gz")
    return archive


def leave_out(folder: str, names: list[str]) -> set[str]:
    hidden = {name for name in names if name.startswith(".") and (Path(folder) / name).is_dir()}
    return hidden | shutil.ignore_patterns(*LEFT_OUT)(folder, names)


@pytest.mark.skipif("vllm" in {each.name for each in distributions()}, reason="vLLM's own command works")
def test_the_command_vllm_says_what_to_use() -> None:
    done = subprocess.run([Path(sys.executable).with_name("vllm")], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "agentcache serve" in done.stderr


def test_the_sdist_has_all_that_is_compiled(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.[ch]pp")}
    assert {"CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", *sources} <= names


def test_the_wheel_of_the_sdist_has_all_of_the_packages(sdist: Path, tmp_path: Path) -> None:
    # Without the compiled module, which takes a minute and other tests have (wheel_install.py).
    build = ("wheel", "--no-deps", "--no-build-isolation", "--config-settings", "wheel.cmake=false")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    subprocess.run([*pip, *build, "--wheel-dir", str(tmp_path), str(sdist)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    assert {name for name in names if name.startswith(PACKAGES)} == expected
    assert [kind for kind in DATA if not any(name.endswith(kind) for name in expected)] == []
