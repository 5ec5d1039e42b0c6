"""Names why a turn waits: every second from its arrival until it runs is for one reason."""

from __future__ import annotations

from typing import Literal

WaitReason = Literal["batch full", "pins", "new job", "load", "fetch", "fill", "grammar", "limit"]
"""What holds a request in the queue.

- `batch full`: nothing but a lack of seats, tokens of the step or free blocks, as in stock vLLM;
- `pins`: it would take blocks that are pinned for jobs whose tools run;
- `new job`: its job is new, among those with the fewest turns or the latest, and leaves room for the others;
- `load`: too little of its prompt is cached, while jobs want more KV than the caches hold;
- `fetch`: its blocks are on their way from another cache;
- `fill`: gaps in front of its cached blocks are being computed;
- `grammar`: its grammar is being compiled;
- `limit`: its tenant has as many jobs under way as it may, and this would be one more.
"""
