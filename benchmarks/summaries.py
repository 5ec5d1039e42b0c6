"""What one command of agentcache measured; a command whose folder holds a summary already is not run again."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def measure(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "agentcache"),
) -> dict[str, Any]:
    """Return each policy's figures; `program` is what Python runs.

    Raises RuntimeError with what the command said if it failed.
    """
    summary = folder / "summary.json"
    if not summary.exists():
        command = [sys.executable, *program, *arguments, "--out", str(folder), "--overwrite"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}".strip())
    policies: dict[str, Any] = json.loads(summary.read_text())["policies"]
    return policies
