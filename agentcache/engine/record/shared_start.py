"""Shares a secret among the engines of one start, so that ids in their recordings agree. It is written nowhere."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from multiprocessing import current_process

from agentcache.engine.vllm.config import VllmConfig

_SECRET_BYTES = 32
# An engine that goes on with another policy begins another recording, as the engines beside it do.
_numbers = count()


@dataclass(frozen=True, slots=True)
class SharedStart:
    """`key` makes the ids of a recording, `id` names it. Neither tells anything of the other."""

    key: bytes
    id: str


def begin_recording(config: VllmConfig) -> SharedStart:
    """Return what this engine's next recording has in common with those of the engines beside it."""
    seed = _find_secret(config) + next(_numbers).to_bytes(8, "big")
    return SharedStart(sha256(b"recording key" + seed).digest(), sha256(b"recording id" + seed).hexdigest()[:16])


def _find_secret(config: VllmConfig) -> bytes:
    """Find what all engines of a host know that one process has started, or draw it for an engine alone.

    That process gave them its key. It may start engines again, and those meet at another port. An engine alone has no
    port; the number of engines does not tell, as vLLM has those of a dense model believe that each is alone.
    """
    port = config.parallel_config.data_parallel_master_port
    if not port:
        return secrets.token_bytes(_SECRET_BYTES)
    return sha256(bytes(current_process().authkey) + str(port).encode()).digest()
