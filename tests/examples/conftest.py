from __future__ import annotations

import sys
from pathlib import Path

# vLLM loads the middleware here by its name; the server in the background is other tests' own.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "server")]
