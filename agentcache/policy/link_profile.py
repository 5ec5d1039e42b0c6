"""Holds how fast KV is copied between the host's memory and a GPU: as assumed, and as a profile has it measured."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True, slots=True)
class Link:
    """One direction, as copies of blocks see it: seconds until a copy begins, and seconds of each block."""

    latency_s: float
    block_s: float


class LinkSpeed(BaseModel):
    """One direction, while the other is idle: seconds until a copy begins, and gigabytes a second from then on."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    latency_s: float = Field(ge=0)
    gb_s: float = Field(ge=1e-6)

    def of_blocks(self, block_bytes: float) -> Link:
        """Return what copies of such blocks cost at this speed."""
        return Link(self.latency_s, block_bytes / (self.gb_s * 1e9))


class LinkSpeeds(BaseModel):
    """Both directions. `both_share`: of its own speed, what a direction keeps while the other copies too."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    fetch: LinkSpeed
    store: LinkSpeed
    both_share: float = Field(ge=1e-6, le=1)

    def override(self, latency_s: float | None, gb_s: float | None) -> LinkSpeeds:
        """Return the same with what is not None in place of what either direction has."""
        given = {"latency_s": latency_s, "gb_s": gb_s}
        changes = {name: value for name, value in given.items() if value is not None}
        return LinkSpeeds(
            fetch=self.fetch.model_copy(update=changes),
            store=self.store.model_copy(update=changes),
            both_share=self.both_share,
        )


class LinkProfile(BaseModel):
    """Measured speeds with where they come from: copies of blocks in so many pieces, one a layer, of so many bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1)
    pieces: int = Field(ge=1)
    piece_bytes: int = Field(ge=1)
    speeds: LinkSpeeds


def assume_link(pcie_s: float) -> LinkSpeeds:
    """Return what is assumed of a link of so many bytes/s by its data sheet, where no profile says more.

    Both shares are those of one H200 with 64 GB/s: 42 GB/s with 1,024 blocks of 2 MiB, and 26 each way at once
    (results/link.jsonl).
    """
    one_way = LinkSpeed(latency_s=0.00006, gb_s=42.0 * pcie_s / 64e9)
    return LinkSpeeds(fetch=one_way, store=one_way, both_share=26 / 42)
