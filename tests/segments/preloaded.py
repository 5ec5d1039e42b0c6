"""All that a worker and a server load, for the process that others are forked from.

What is loaded stays: the collectors of those others, which engines call again and again, never look at it.
"""

from __future__ import annotations

import gc
from importlib import import_module

gc.disable()
for name in ("vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.entrypoints.openai.api_server"):
    import_module(name)
gc.freeze()
gc.enable()
