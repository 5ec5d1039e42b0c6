from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from sizes import IS_THOROUGH, pick_size

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
COMPILER = shutil.which("g++")
SANITIZERS = "-fsanitize=address,undefined"
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
# The sanitizers name functions without these, and lines with them, for a third more of compilation.
FLAGS += ["-g1", "-fno-var-tracking"] if IS_THOROUGH else []
FLAGS += ["-Og", SANITIZERS, "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS", f"-I{CSRC}", f"-I{HERE}"]
# In one go: by themselves each takes as long as both together.
SOURCES = ("stress.cpp", "damage.cpp")
# The thorough profile makes the same calls with the same seeds, and more behind them.
STEPS = pick_size(400, 2000)


def build(folder: Path) -> Path:
    """Compile the sources and return the program."""
    program = folder / "stress"
    unit = "".join(f'#include "{name}"\n' for name in SOURCES)
    subprocess.run(["g++", *FLAGS, "-xc++", "-", "-o", str(program)], input=unit, text=True, check=True)
    return program


@pytest.mark.engine
@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_random_calls_under_sanitizers(tmp_path: Path) -> None:
    program = build(tmp_path)
    # The sanitizer wants to be the first library, and vLLM puts others there for the processes it starts.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    run = subprocess.run([str(program), str(STEPS)], capture_output=True, text=True, check=False, env=environment)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
