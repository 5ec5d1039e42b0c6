from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
COMPILER = shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_random_calls_under_sanitizers(tmp_path: Path) -> None:
    program = tmp_path / "stress"
    command = ["g++", "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"]
    subprocess.run([*command, f"-I{CSRC}", str(HERE / "stress.cpp"), "-o", str(program)], check=True)
    # The sanitizer wants to be the first library, and vLLM puts others there for the processes it starts.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    run = subprocess.run([str(program)], capture_output=True, text=True, check=False, env=environment)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
