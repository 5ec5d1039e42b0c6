"""Predicts how much of the KV that is evicted now will be lost before its job is back."""

from __future__ import annotations

from typing import NamedTuple


class LossRange(NamedTuple):
    """Nothing is lost while jobs want `fits` times the room, all of what is evicted once they want `full` times.

    Contexts grow and jobs come; on the other hand not all come back.
    """

    fits: float
    full: float


# Chosen by simulations of BFCL's seeds 1, 2 and 10, of 0.6 to 1.0, 0.7 to 1.1 and 0.8 to 1.2
# (docs/results/host-memory-waits.md#what-juniors-wait-for).
BESIDE_TIER = LossRange(0.7, 1.1)
# Chosen on seeds 0 to 5 and 289, of 0.7 to 1.0 and 1.1, 0.9 to 1.2 and 1.0 to 1.2 (docs/results/families.md#chosen).
WITHOUT_TIER = LossRange(1.0, 1.2)


def foresee_loss(wanted: float, room: float, losses: LossRange) -> float:
    """Return the share of evicted KV that will be lost before its job is back, from 0 to 1.

    Args:
        wanted: The tokens that the jobs under way will come back for.
        room: Those that the GPU's cache and the CPU cache, if it is used, hold together.
        losses: How often they may want that room.
    """
    return min(1.0, max(0.0, (wanted / room - losses.fits) / (losses.full - losses.fits)))
