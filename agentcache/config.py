"""Every knob of the engine plug-in, as it stands in vLLM's `additional_config["agentcache"]`.

Each knob says where its default comes from:

- paper: AsymCache, with the name of the section
- measured: varied, with the file and section of docs/results/ that have the figures
- chosen: on the recordings or seeds that are named; "the sessions" are those of docs/results/coding-sessions.md
- assumed: never tuned
- not tuned: a switch, a name, or a limit that only has to be large enough

Constants that are no knobs say so where they stand: seniority and patience in `agentcache/policy/registry.py`, with
windows or recurrent layers also in `runtime_policy.py`, what a GPU reaches in `presets.py`, and in `tool_runtime/` the
medians at the start, half-life and shrinkage (`durations.py`), load (`load.py`), the bound of factors (`correction.py`)
and Continuum's numbers (`ttl.py`). Two more are assumed: that half of all waits end within 30 s, until policy
`agentcache` knows better (learned_waits.hpp), and that a command is learnt of by itself, not with its tool, from its
eighth end on (engine/jobs/finish_classes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from agentcache.policy.presets import GPUS
from agentcache.policy.registry import DEFAULT_POLICY, find_policy, with_evictor

_BY_POLICY = "not tuned: the policy's (agentcache/policy/registry.py)"
_OPT_IN = "not tuned: off unless asked for"
# Which other values were tried was not written down.
_WITH_EVICTOR = "chosen: on 32 of the sessions and BFCL seeds 0 to 2, with the other settings of the evictor"
_WITH_PINS = "chosen: on 32 of the sessions and BFCL seeds 0 to 2, with the other settings of pins"

# No knob is of use beyond these limits, and within them the arithmetic of every policy works.
_MOST = 10**9
_COUNT = {"ge": 1, "le": _MOST}
_POSITIVE = {"ge": 1e-6, "le": _MOST}
_NOT_NEGATIVE = {"ge": 0, "le": _MOST}


def _knob(default: object, description: str, origin: str, **limits: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra={"origin": origin}, **limits)


class SegmentsConfig(BaseModel):
    """Multi-segment reuse: cached blocks are reused behind gaps, not only as a prefix."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = _knob(None, "None leaves it to the policy", _BY_POLICY)
    max_gaps: int = _knob(
        8, "fill requests for one request; the cached segments worth least are dropped", "assumed", **_COUNT
    )
    row_s: float = _knob(
        0.7e-3,
        "seconds that a fill request takes beside its tokens; cached segments that save less are dropped",
        "assumed; at 1,024 tokens, two more fill requests were measured to take 0.3 and 0.5 ms together "
        '(docs/results/multi-segment-reuse.md, "Multi-segment reuse: time to first token")',
        **_NOT_NEGATIVE,
    )


class ChunkingConfig(BaseModel):
    """Adaptive chunking: many running decodes make a step's prefill budget smaller, so that they wait less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = _knob(None, "None leaves it to the policy", _BY_POLICY)
    threshold: int = _knob(
        32,
        "running decodes above which the budget shrinks",
        "measured: the lowest TTFT of five budgets; the paper gives no number "
        '(docs/results/adaptive-chunking.md, "Adaptive chunking")',
        **_COUNT,
    )
    floor: int = _knob(
        1024,
        "tokens of prefill that every step may have",
        "assumed; only 512 was measured beside it, with a threshold of 4; the paper gives no number "
        '(docs/results/adaptive-chunking.md, "Adaptive chunking")',
        **_COUNT,
    )


class GroupedConfig(BaseModel):
    """Settings of what policy `agentcache` learns of the waits between a request and the next that uses its blocks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int = _knob(4000, "requests after which all that was observed counts for half", _WITH_EVICTOR, **_COUNT)
    prior_returns: float = _knob(
        0.1,
        "prior weight, in pseudo-returns per age bin (four bins to a doubling): of all classes of requests against one "
        "class, and of what is assumed against all classes",
        "chosen: of 0.03, 0.1, 0.3 and 1, on four sets of 32 of the sessions "
        '(docs/results/coding-sessions.md, "With the agent runtime")',
        **_POSITIVE,
    )
    least_wait_s: float = _knob(
        1.0, "added to every wait: differences far below it do not count", _WITH_EVICTOR, **_POSITIVE
    )


class PinsConfig(BaseModel):
    """While a job's tool runs, its KV is evicted last, for a time and within a budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = _knob(None, "None leaves it to the policy", _BY_POLICY)
    budget: float = _knob(
        1.0,
        "share of the cache that pins may take",
        "measured: on BFCL seeds 3 to 5 half is as good and a quarter 2 % slower "
        '(docs/results/bfcl.md, "What pins may take")',
        ge=0,
        le=1,
    )
    tenant_budget: float = _knob(1.0, "share of that for one tenant (cache_salt)", _OPT_IN, ge=0, le=1)
    max_ttl_s: float = _knob(
        5.0,
        "seconds after which a pin is decided again",
        f'{_WITH_PINS}; 600 s was far worse (docs/results/coding-sessions.md, "With the agent runtime")',
        **_POSITIVE,
    )
    min_chance: float = _knob(
        0.3, "least chance that the job returns within that time; below it there is no pin", _WITH_PINS, ge=0, le=1
    )


class OrderConfig(BaseModel):
    """Which request comes next: returning jobs go before new ones, and no request waits for ever."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = _knob(None, "None leaves it to the policy", _BY_POLICY)
    seniority_s: float | None = _knob(
        None,
        "seconds by which, at most, an older job's request goes before a newer one's; None leaves it to the policy",
        "chosen: policy agentcache has 12, on BFCL seeds 0 to 2 and 10 to 12 "
        "(git show 237f9e8:docs/results/front-before-juniors.md)",
        **_NOT_NEGATIVE,
    )
    patience_s: float | None = _knob(
        None,
        "seconds since its arrival after which a request goes first and may take pinned blocks; None: the policy's",
        'chosen: policy agentcache has 15, of 8 to 30 s on BFCL seeds 0, 1 and 4 (docs/results/front.md, "How it '
        "was chosen\"); it may have less with windows, recurrent layers or KV in the host's memory "
        "(docs/tuning.md)",
        **_NOT_NEGATIVE,
    )
    least_wait_s: float | None = _knob(
        None,
        "seconds that a wait for pins must be worth to be begun; of no effect with KV in the host's memory; None "
        "leaves it to the policy",
        'chosen: policy agentcache has 1, against 0 on mini-swe-agent seeds 0 to 3 (docs/results/front.md, "How '
        'it was chosen")',
        **_NOT_NEGATIVE,
    )
    reserve: float | None = _knob(
        None,
        "share of the cache, and at most as much as is pinned and `order.running` adds, that juniors leave free for "
        "other jobs to grow; None leaves it to the policy",
        "chosen: policy agentcache has 0.25, of 0, 0.1 and 0.25 on BFCL seeds 0 to 9 "
        "(git show 237f9e8:docs/results/front-before-juniors.md)",
        ge=0,
        le=1,
    )
    running: float | None = _knob(
        None,
        "share of what running requests hold for which juniors leave as much free as for what is pinned; None leaves "
        "it to the policy",
        "chosen: policy agentcache has 0, with windows or recurrent layers 1, on seeds 0 to 3 "
        '(docs/results/families.md, "Chosen")',
        ge=0,
        le=1,
    )
    juniors: float | None = _knob(
        None,
        "of the jobs under way, the share with the fewest turns behind them, which leaves the reserve free as new jobs "
        "do; None leaves it to the policy",
        'chosen: policy agentcache has 0.8, of 0.65 to 0.9 on BFCL seeds 0, 1 and 4 (docs/results/front.md, "How '
        'it was chosen")',
        ge=0,
        le=1,
    )
    load_control: float | None = _knob(
        None,
        "while jobs want more than the caches hold, for how long a turn that lost its context waits, as a share of the "
        "seconds in which the contexts of all are computed; 0: it does not; None leaves it to the policy",
        "chosen: policy agentcache has 0.5, with KV in the host's memory 0.25, of 0 to 2 on seeds 0 and 1 "
        '(docs/results/closed-loop-choices.md, "Load control")',
        **_NOT_NEGATIVE,
    )


class TierConfig(BaseModel):
    """KV in the host's memory (vLLM's --kv-offloading-size): what is stored there, kept and fetched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = _knob(
        True,
        "whether policies that can (agentcache, agentcache-interactive) steer it, or leave it to vLLM",
        'measured: H200s, jobs end sooner than with vLLM\'s (docs/results/host-memory.md, "What you get")',
    )
    link_gb_s: float | None = _knob(
        None,
        "gigabytes a second between the host's memory and each GPU, one way; None takes them from the profile, or 42",
        "measured: one H200, 1,024 blocks; 33 to 52 by their number, 26 each way at once "
        '(docs/results/host-memory-link.md, "Measured")',
        **_POSITIVE,
    )
    latency_s: float | None = _knob(
        None,
        "seconds until copies begin; blocks that save less by being fetched are computed; None takes them from the "
        "profile, or 0.00006",
        'measured: the same H200 (docs/results/host-memory-link.md, "Measured")',
        **_NOT_NEGATIVE,
    )


class ReplicasConfig(BaseModel):
    """Data parallel: a job stays at the engine that has its KV (agentcache/policy/replicas/)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = _knob(
        None, "None: with policies that follow jobs; otherwise vLLM balances single requests", _BY_POLICY
    )
    extra_jobs: float = _knob(
        0.5,
        "by how much an engine may have more jobs than that with the fewest, to get a new job whose prompt it has",
        'chosen: 32 simulated runs of Claude Code sessions (docs/results/replicas.md, "Shared prompts")',
        **_NOT_NEGATIVE,
    )
    spill_factor: float = _knob(
        3.0,
        "a job moves, once, when its turn costs so many times as much at home as at an engine with room for it",
        "assumed",
        ge=1,
        le=_MOST,
    )
    live_s: float = _knob(
        60.0,
        "seconds of idle time after which a job counts no longer to its engine's load, or four mean pauses if less",
        "assumed",
        **_POSITIVE,
    )


class RouterConfig(BaseModel):
    """A router in front of several servers (docs/replicas.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = _knob(
        None,
        "vllm-router that is told which sessions are over, as in http://10.0.0.1:8080",
        _OPT_IN,
        pattern=r"^https?://[^/]+$",
    )


class RuntimeConfig(BaseModel):
    """The agent runtime's records: jobs by session, and how long tools take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool_parser: str | None = _knob(
        None, "vLLM's tool-call parser; serve sets it from --tool-call-parser", "not tuned: serve sets it"
    )
    show_text: bool = _knob(False, "show the text where a prompt leaves the last turn (docs/misses.md)", _OPT_IN)
    max_jobs: int = _knob(
        10_000, "jobs remembered; the longest idle are forgotten first", "not tuned: bounds the memory", **_COUNT
    )
    max_idle_s: float = _knob(3600.0, "seconds after which an idle job is forgotten", "assumed", **_POSITIVE)
    durations_file: str | None = _knob(
        None,
        "file that keeps tool durations over restarts, saved every few seconds (data-parallel engines other than the "
        "first append their rank to its name, and each learns from the files of all); None keeps them in memory alone",
        _OPT_IN,
    )


class RecordConfig(BaseModel):
    """A recording of all requests without their text, for plan, simulate and replay (docs/recording.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str | None = _knob(
        None,
        "file that gets a line when a request ends; serve sets it from --record (data-parallel engines other than the "
        "first add their rank to its name)",
        _OPT_IN,
        min_length=1,
    )
    block_tokens: int = _knob(
        512, "tokens of a recorded block, a multiple of the engine's", "not tuned: as in Mooncake's traces", **_COUNT
    )
    tool_names: bool = _knob(False, "write the names of called tools, and not only salted ids", _OPT_IN)
    max_mb: int = _knob(256, "megabytes after which a file is full", "not tuned: bounds the disk", **_COUNT)
    files: int = _knob(
        8, "files that stay, the full ones as FILE.1 and so on", "not tuned: bounds the disk", ge=1, le=1000
    )


class AgentCacheConfig(BaseModel):
    """Unknown keys are errors, so that a misspelt knob cannot pass as its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = _knob(
        DEFAULT_POLICY,
        "which blocks to evict; see agentcache.policy.registry",
        'measured: a mean job latency of three quarters of vLLM\'s (docs/results/bfcl.md, "Twenty other seeds")',
    )
    evictor: str | None = _knob(
        None,
        "policy whose evictor takes the place of the policy's own, under the same pins, order and reuse; for ablations",
        _BY_POLICY,
    )
    forced_replies: bool = _knob(
        False, "let clients prescribe the reply tokens, for replays; not for a server that strangers reach", _OPT_IN
    )

    segments: SegmentsConfig = SegmentsConfig()
    chunking: ChunkingConfig = ChunkingConfig()
    grouped: GroupedConfig = GroupedConfig()
    pins: PinsConfig = PinsConfig()
    order: OrderConfig = OrderConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    tier: TierConfig = TierConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    router: RouterConfig = RouterConfig()
    record: RecordConfig = RecordConfig()

    gpu: str | None = _knob(
        None, "GPU whose data sheet gives the cost model; None is the GPU at hand", "not tuned: the GPU at hand"
    )
    cost_profile: str | None = _knob(
        None,
        "file that `agentcache profile` wrote on this machine for this model, or a folder with one that fits; None "
        "takes the profile that comes with agentcache, or else an analytic cost model, made of the model's config and "
        "the GPU's data sheet",
        _OPT_IN,
        min_length=1,
    )
    lifespan_s: float = _knob(
        60.0,
        "seconds of idle time at which reuse becomes unlikely; the 99th percentile of gaps is a good choice",
        "assumed; since measured on the sessions: 15 s is worse, 240 s as good "
        '(docs/results/paper-parameters.md, "How much the paper\'s parameters matter"). '
        "The paper takes the 99th percentile of gaps (Frequency Value Definition)",
        **_POSITIVE,
    )
    reuse_probability: float = _knob(
        0.5,
        "chance that a block idle for lifespan_s is used again",
        "paper: the middle of 0.3 to 0.7, where it is nearly optimal (Reuse Probability)",
        gt=0,
        lt=1,
    )
    slope_ratio: float = _knob(
        40.0,
        "how much faster the chance of reuse falls after that",
        "paper: 40 in its evaluation (Frequency Value Definition)",
        gt=1,
        le=_MOST,
    )
    lifespan_window: int = _knob(
        1000,
        "latest reuse gaps whose mean is the present lifespan",
        "assumed; since measured on the sessions: 10 is worse, 100 and 10,000 as good "
        '(docs/results/paper-parameters.md, "How much the paper\'s parameters matter")',
        **_COUNT,
    )
    # λ grows with the exponential of that mean, so that a limit which looks large pins it to one side.
    lambda_limit: float = _knob(
        1e300,
        "λ, which follows that mean, stays between 1/limit and limit",
        "measured: better than 1e6 on the sessions when it was set, 4 % worse than that since factors came "
        '(docs/results/paper-parameters.md, "How much the paper\'s parameters matter")',
        ge=1,
        le=1e300,
    )

    @field_validator("gpu")
    @classmethod
    def _known_gpu(cls, name: str | None) -> str | None:
        if name is not None and name not in GPUS:
            raise ValueError(f"{name} is unknown; choose from {', '.join(GPUS)}")
        return name

    @model_validator(mode="after")
    def _known_evictor(self) -> Self:
        with_evictor(find_policy(self.policy), self.evictor)
        return self

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, name: str) -> str:
        return find_policy(name).name


def is_on(wanted: bool | None, by_policy: bool) -> bool:
    """Tell whether a part is on: what the knob says, else what the policy brings."""
    return by_policy if wanted is None else wanted


def iterate_knobs(model: type[BaseModel], parents: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield each knob by its dotted name, in the order of this file."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from iterate_knobs(field.annotation, f"{parents}{name}.")
        else:
            yield parents + name, field
