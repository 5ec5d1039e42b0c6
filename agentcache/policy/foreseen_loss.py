"""What will be lost of what jobs leave: how much they will come back for, against the room there is for it."""

from __future__ import annotations

# Nothing is lost while jobs want so much of the room, all of what is evicted once they want so much. Contexts grow and
# jobs come; on the other hand not all come back. Chosen by simulations of BFCL's seeds 1, 2 and 10, of 0.6 to 1.0, 0.7
# to 1.1 and 0.8 to 1.2 (docs/results/host-memory.md#what-juniors-wait-for).
_FITS, _FULL = 0.7, 1.1


def foresee_loss(wanted: float, room: float) -> float:
    """Return the share of evicted KV that will be lost before its job is back, from 0 to 1.

    Args:
        wanted: The tokens that the jobs under way will come back for.
        room: Those that the GPU's cache and the host's memory hold together.
    """
    return min(1.0, max(0.0, (wanted / room - _FITS) / (_FULL - _FITS)))
