"""Lists the reasons for which an engine can reuse cached blocks only as prefixes."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """`slug` is a metric's label value, `text` what the log, the state and the doctor say."""

    def __init__(self, slug: str, text: str) -> None:
        self.slug = slug
        self.text = text


class Obstacle(Reason):
    """Reasons that lie in the model, or in what the engine was started with."""

    PREFIX_CACHING_OFF = "prefix-caching-off", "prefix caching is off"
    # Others draft with a cache of their own, in which a fill request's last token would have a wrong successor.
    DRAFTER = "drafter", "speculative decoding is on, and not by ngram"
    KV_CONNECTOR = "kv-connector", "a KV connector is in use"
    # What belongs to a gap's tokens is made in the fill request, of which the client hears nothing.
    ROUTED_EXPERTS = "routed-experts", "routed experts are returned"
    # A request may be in one half of a step's batch and read what its fill request, in the other, has yet to write.
    DUAL_BATCH_OVERLAP = "dual-batch-overlap", "dual-batch overlap is on"
    CONTEXT_PARALLEL = "context-parallel", "the cache is split over a context-parallel group"
    # A state stands for all tokens before it: there is nothing behind a gap to go on with.
    RECURRENT_LAYERS = "recurrent-layers", "the model has recurrent layers"
    OTHER_LAYERS = (
        "other-layers",
        "the model has layers of other kinds than full, sliding-window and chunked attention",
    )
    # Its last window is all that a request needs: there are no gaps before it.
    WINDOWS_ALONE = "windows-alone", "no layer of the model keeps all tokens"
    BLOCK_SIZES = "block-sizes", "groups of layers have blocks of several sizes"
    HASH_SIZE = "hash-size", "blocks are hashed in another size than they are kept in"
