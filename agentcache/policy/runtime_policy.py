"""Describes what the agent runtime does under a policy, as plain values that the registry composes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

# How long to keep a finished turn's KV: never; 2 s after fast tools (Continuum as released); Continuum as published;
# ours, which weighs the cost of recomputing against the room taken from others, and decides anew while the tool runs.
Ttl = Literal["none", "released", "published", "hazard"]
# Which pin gives way first: that of the job that came last; the one that would last longest.
PinRank = Literal["job arrival", "deadline"]
# Whether a request takes pinned blocks of others while it has patience (`Order`): it does; it waits for the pins' ends;
# it waits for as long as taking them would cost.
PinWait = Literal["none", "always", "weighed"]
# Whom vLLM preempts when running requests need room: the last of the batch; the job that came last; the one that
# costs least to compute again.
Victim = Literal["last", "latest job", "cheapest"]
# A request that takes no longer, prefill and reply, by the cost model and its limit of tokens, waits for no other that
# comes after it, nor for pins: others would hardly gain. A tenth of the shortest patience that an order has.
SMALL_S = 0.2
# No client is to give up: openai's and anthropic's wait for 600 s, and a prefill is still to come.
LONGEST_S = 450.0
# As shares of the seconds in which the whole cache is computed: with windows, chosen
# on seeds 0 and 1; with states, on seeds 0 to 3, of 0.4, 0.6 and 0.8.
_PATIENCE_WITH_WINDOWS = 1.0
_PATIENCE_WITH_STATES = 0.8
# Chosen on seeds 0 to 4, of 5, 8 and 15 s (docs/results/what-did-not-work.md#the-order-of-jobs).
_PATIENCE_BESIDE_TIER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Preempted requests first, then those of jobs with a live pin, then by the job's arrival.

    That a job is older counts for at most `seniority_s`, and a request that has waited `patience_s` since its arrival
    goes before all others but preempted ones, and takes pinned blocks, so no request waits for ever; both infinite is
    the bare order of jobs. A wait for pins that is worth less than `least_wait_s` is not begun: hardly a tool returns
    so soon, so the request would wait and then take the blocks all the same.

    Juniors leave as much again free as is pinned while tools run, and the share `running` of what running requests
    hold, together up to the share `reserve` of the cache: jobs come back with more than they left, and what they lack
    then is taken from other jobs. They wait for as long as computing again what their own jobs will take of that room
    would cost, at each turn no longer than their patience. Juniors are new jobs and, of those under way, the share
    `juniors` that has the fewest turns behind it, but none that has come far (`FAR_TURNS`).

    Where jobs want more than the caches hold, turns that compute their contexts go one at a time while others run, so
    that they take at most `recompute_share` of the engine's time, more where the caches hold few jobs, whatever their
    patience; one that has waited for `longest_wait_s` goes all the same. Turns of the latest jobs wait a while for room
    (`LoadControl`).
    """

    seniority_s: float = math.inf
    patience_s: float = math.inf
    least_wait_s: float = 0.0
    reserve: float = 0.0
    running: float = 0.0
    juniors: float = 0.0
    recompute_share: float = 0.0
    longest_wait_s: float = LONGEST_S

    def hurry(self, most_s: float) -> Order:
        """Return the order in which no request waits for others' blocks longer than `most_s`."""
        return replace(self, patience_s=min(self.patience_s, most_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePolicy:
    """`order` None is first come, first served. `factors`: correction factors and lifespans go to the evictor.

    `protect_waiting`: what waiting requests will hit is kept for them. `wait_for_pins`: whether, while anything runs,
    a request without a pin of its own leaves pinned blocks alone. Where that is weighed, small requests (`SMALL_S`) do
    not wait, and keep their place by arrival.
    """

    ttl: Ttl = "none"
    pin_rank: PinRank = "job arrival"
    wait_for_pins: PinWait = "none"
    protect_waiting: bool = False
    order: Order | None = None
    victim: Victim = "last"
    factors: bool = False

    def beside_tier(self) -> RuntimePolicy:
        """Return ours for an engine with a CPU cache.

        Each wait is begun: requests that do not wait for pins evict what others have fetched, for ever. None is long,
        as little is lost. Continuum's stay as published.
        """
        if self.ttl != "hazard" or self.order is None:
            return self
        return replace(self, order=replace(self.order.hurry(_PATIENCE_BESIDE_TIER_S), least_wait_s=0.0))

    def keep_contexts_whole(self, cache_s: float, *, has_states: bool) -> RuntimePolicy:
        """Return ours for layers with windows or states: without its last one a context is lost as a whole.

        Juniors leave room for what running requests hold, too, and no request waits for others' blocks longer than a
        share of `cache_s`, the seconds in which the whole cache is computed. Continuum's stay as published.
        """
        if self.ttl != "hazard" or self.order is None:
            return self
        share = _PATIENCE_WITH_STATES if has_states else _PATIENCE_WITH_WINDOWS
        return replace(self, order=replace(self.order.hurry(share * cache_s), running=1.0))
