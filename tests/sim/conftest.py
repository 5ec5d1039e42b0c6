from __future__ import annotations

import sys
from pathlib import Path

# The server in the background, the contract of every evictor and small trace files are other tests' own.
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("server", "policy", "replay")]
