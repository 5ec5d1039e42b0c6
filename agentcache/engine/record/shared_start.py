"""What the engines of one start share, so that ids in their recordings agree: a secret that is written nowhere.

The process that makes their configuration draws it, and it comes to each of them with that.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from itertools import count

from vllm.config import VllmConfig

from agentcache.engine.patches import ADDED_PREFIX, replace

_SECRET = f"{ADDED_PREFIX}recording_secret"
_SECRET_BYTES = 32
# An engine that goes on with another policy begins another recording, as the engines beside it do.
_numbers = count()


@dataclass(frozen=True, slots=True)
class SharedStart:
    """`key` makes the ids of a recording, `id` names it. Neither tells anything of the other."""

    key: bytes
    id: str


def share_secret(config: VllmConfig) -> None:
    """Give all engines that will start with this configuration a secret of their own."""
    replace(config, _SECRET, secrets.token_bytes(_SECRET_BYTES))


def begin_recording(config: VllmConfig) -> SharedStart:
    """Return what this engine's next recording has in common with those of the engines beside it."""
    # Engines whose configuration another process made, as in simulations, share nothing.
    secret: bytes = getattr(config, _SECRET, None) or secrets.token_bytes(_SECRET_BYTES)
    seed = secret + next(_numbers).to_bytes(8, "big")
    return SharedStart(sha256(b"recording key" + seed).digest(), sha256(b"recording id" + seed).hexdigest()[:16])
