from __future__ import annotations

import sys
from pathlib import Path

# The server in the background is the server's tests' own.
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
