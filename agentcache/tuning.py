"""Constants that ablations may set, as `--agentcache tuning.row_s=0`. Names and values may change with any release.

They are no knobs: no deployment is known to need another value. Origins are written as in agentcache/config.py.
Constants that nothing sets stand where they are used.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

# No value is of use beyond these limits, and within them the arithmetic of every policy works.
MOST = 10**9
COUNT = {"ge": 1, "le": MOST}
POSITIVE = {"ge": 1e-6, "le": MOST}
NOT_NEGATIVE = {"ge": 0, "le": MOST}
SHARE = {"ge": 0, "le": 1}


class KnobGroup(BaseModel):
    """Unknown keys are errors, so that a misspelt knob cannot pass as its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def knob_field(default: object, description: str, origin: str, **limits: Any) -> Any:
    """Declare a field; `limits` are pydantic's. agentcache/config.py says what may stand in an origin."""
    return Field(default=default, description=description, json_schema_extra={"origin": origin}, **limits)


# Which other values were tried was not written down.
_WITH_PINS = "chosen: on 32 of the sessions and BFCL seeds 0 to 2, with the other settings of pins"


class Tuning(KnobGroup):
    """None leaves a value to the policy, or to the profile."""

    # Multi-segment reuse.
    max_gaps: int = knob_field(
        8, "fill requests for one request; the cached segments worth least are dropped", "assumed", **COUNT
    )
    row_s: float = knob_field(
        0.7e-3,
        "seconds that a fill request takes beside its tokens; cached segments that save less are dropped",
        "assumed; at 1,024 tokens, two more fill requests were measured to take 0.3 and 0.5 ms together "
        "(results/segments.jsonl)",
        **NOT_NEGATIVE,
    )

    # Adaptive chunking.
    chunking_threshold: int = knob_field(
        32,
        "running decodes above which the budget shrinks",
        "measured: the lowest TTFT of five budgets; the paper gives no number (results/segments.jsonl)",
        **COUNT,
    )
    chunking_floor: int = knob_field(
        1024,
        "tokens of prefill that every step may have",
        "assumed; only 512 was measured beside it, with a threshold of 4; the paper gives no number "
        "(results/segments.jsonl)",
        **COUNT,
    )

    # Pins.
    max_ttl_s: float = knob_field(
        20.0,
        "seconds after which a pin is decided again",
        "chosen: of 5, 15, 20 and 60 s in closed loops of seed 0 and on BFCL seeds 0 and 1 "
        '(docs/results/what-did-not-work.md, "More agents than fit")',
        **POSITIVE,
    )
    min_chance: float = knob_field(
        0.3, "least chance that the job returns within that time; below it there is no pin", _WITH_PINS, **SHARE
    )

    # The order of requests, under the names that agentcache.policy.runtime_policy.Order has for them.
    seniority_s: float | None = knob_field(
        None,
        "seconds by which, at most, an older job's request goes before a newer one's",
        "chosen: policy agentcache has 12, on BFCL seeds 0 to 2 and 10 to 12 "
        "(git show 237f9e8:docs/results/front-before-juniors.md)",
        **NOT_NEGATIVE,
    )
    least_wait_s: float | None = knob_field(
        None,
        "seconds that a wait for pins must be worth to be begun; policy agentcache has 0 with a CPU cache",
        "chosen: policy agentcache has 1, against 0 on mini-swe-agent seeds 0 to 3 "
        '(docs/results/what-did-not-work.md, "The order of jobs")',
        **NOT_NEGATIVE,
    )
    reserve: float | None = knob_field(
        None,
        "share of the cache, and at most as much as is pinned and `running` adds, that juniors leave free for other "
        "jobs to grow",
        "chosen: policy agentcache has 0.25, of 0, 0.1 and 0.25 on BFCL seeds 0 to 9 "
        "(git show 237f9e8:docs/results/front-before-juniors.md)",
        **SHARE,
    )
    running: float | None = knob_field(
        None,
        "share of what running requests hold for which juniors leave as much free as for what is pinned",
        "chosen: policy agentcache has 0, with windows or recurrent layers 1, on seeds 0 to 3 "
        '(docs/results/what-did-not-work.md, "Models and the simulator")',
        **SHARE,
    )
    juniors: float | None = knob_field(
        None,
        "of the jobs under way, the share with the fewest turns behind them, which leaves the reserve free as new jobs "
        "do",
        "chosen: policy agentcache has 0.8, of 0.65 to 0.9 on BFCL seeds 0, 1 and 4 "
        '(docs/results/what-did-not-work.md, "The order of jobs")',
        **SHARE,
    )
    longest_wait_s: float | None = knob_field(
        None,
        "seconds after which a turn goes that `order.recompute_share` has wait",
        "chosen: policy agentcache has 450, as the clients of OpenAI and Anthropic give up after 600",
        **NOT_NEGATIVE,
    )

    # A CPU cache.
    link_latency_s: float | None = knob_field(
        None,
        "seconds until copies begin; blocks that save less by being fetched are computed; None takes them from the "
        "profile, or 0.00006",
        "measured: one H200, 1,024 blocks (results/link.jsonl)",
        **NOT_NEGATIVE,
    )

    # Jobs and recordings.
    max_jobs: int = knob_field(
        10_000, "jobs remembered; the longest idle are forgotten first", "not tuned: bounds the memory", **COUNT
    )
    record_block_tokens: int = knob_field(
        512, "tokens of a recorded block, a multiple of the engine's", "not tuned: as in Mooncake's traces", **COUNT
    )

    # The paper's evictor, asymcache, and the correction factors.
    reuse_probability: float = knob_field(
        0.5,
        "chance that a block idle for `lifespan_s` is used again",
        "paper: the middle of 0.3 to 0.7, where it is nearly optimal (Reuse Probability)",
        gt=0,
        lt=1,
    )
    slope_ratio: float = knob_field(
        40.0,
        "how much faster the chance of reuse falls after that",
        "paper: 40 in its evaluation (Frequency Value Definition)",
        gt=1,
        le=MOST,
    )
    lifespan_window: int = knob_field(
        1000,
        "latest reuse gaps whose mean is the present lifespan",
        "assumed; since measured on the sessions: 10 is worse, 100 and 10,000 as good "
        '(docs/results/what-did-not-work.md, "The evictor")',
        **COUNT,
    )
    # λ grows with the exponential of that mean, so that a limit which looks large pins it to one side.
    lambda_limit: float = knob_field(
        1e300,
        "λ, which follows that mean, stays between 1/limit and limit",
        "measured: better than 1e6 on the sessions when it was set, 4 % worse than that since factors came "
        '(docs/results/what-did-not-work.md, "The evictor")',
        ge=1,
        le=1e300,
    )
