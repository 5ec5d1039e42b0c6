"""What curves of waits import, they import before the first request."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from tool_runtime.learning.ttl import SurvivalCurve
import numpy as np
before = set(sys.modules)
np.union1d([1.0], [2.0])
print(sorted(set(sys.modules) - before))
"""


def test_the_first_curve_imports_nothing() -> None:
    assert subprocess.check_output([sys.executable, "-c", CODE], text=True).strip() == "[]"
