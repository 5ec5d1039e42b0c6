"""Declares every knob of the engine plug-in, as it stands in vLLM's `additional_config["agentcache"]`.

Each knob says where its default comes from:

- paper: AsymCache, with the name of the section
- measured: varied, with the page and section, or the file of results/, that has the figures
- chosen: on the recordings or seeds that are named; "the sessions" are recorded ones of Claude Code
- assumed: never tuned
- not tuned: a switch, a name, or a limit that only has to be large enough

Constants that only ablations set are in `agentcache/tuning.py`. Others say so where they stand: seniority and patience
in `agentcache/policy/registry.py`, with windows or recurrent layers also in `runtime_policy.py`, what a GPU reaches in
`presets.py`, which engine gets a new job in `replicas/placement.py`, hazards of classes without a tool in
`engine/jobs/finish_classes.py`, and in `tool_runtime/` the medians at the start, half-life and shrinkage
(`durations.py`), load and the bound of factors (`runtime.py`), Continuum's numbers (`continuum.py`), and that a command
is learnt of by itself, not with its tool, from its eighth end on (`tool_key.py`). One more is assumed: that half of all
waits end within 30 s, until policy `agentcache` knows better (return_waits.hpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import BaseModel, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from agentcache.policy.gpus import GPUS
from agentcache.policy.registry import DEFAULT_POLICY, find_policy, with_evictor
from agentcache.tenants import Tenants
from agentcache.tuning import COUNT, MOST, NOT_NEGATIVE, POSITIVE, SHARE, KnobGroup, Tuning, knob_field

_BY_POLICY = "not tuned: the policy's (agentcache/policy/registry.py)"
_OPT_IN = "not tuned: off unless asked for"


class SegmentsConfig(KnobGroup):
    """Multi-segment reuse: cached blocks are reused behind gaps, not only as a prefix."""

    enabled: bool | None = knob_field(None, "reuse cached blocks behind gaps; null: the policy's", _BY_POLICY)


class ChunkingConfig(KnobGroup):
    """Adaptive chunking: many running decodes make a step's prefill budget smaller, so that they wait less."""

    enabled: bool | None = knob_field(None, "shrink prefills while many decode; null: the policy's", _BY_POLICY)


class PinsConfig(KnobGroup):
    """While a job's tool runs, its KV is evicted last, for a time and within a budget."""

    enabled: bool | None = knob_field(None, "pin KV while tools run; null: the policy's", _BY_POLICY)
    budget: float = knob_field(
        1.0,
        "share of the cache that pins may take",
        "measured: on BFCL seeds 3 to 5 half is as good and a quarter 2 % slower "
        '(docs/results/what-did-not-work.md, "Pins")',
        **SHARE,
    )


class OrderConfig(KnobGroup):
    """Which request comes next: returning jobs go before new ones, and no request waits for ever."""

    enabled: bool | None = knob_field(None, "serve jobs that have come far first; null: the policy's", _BY_POLICY)
    patience_s: float | None = knob_field(
        None,
        "seconds since its arrival after which a request goes first and may take pinned blocks; None: the policy's",
        "chosen: policy agentcache has 15, of 8 to 30 s on BFCL seeds 0, 1 and 4 "
        '(docs/results/what-did-not-work.md, "The order of jobs"); it may have less with windows, '
        "recurrent layers or a CPU cache (docs/tuning.md)",
        **NOT_NEGATIVE,
    )
    recompute_share: float | None = knob_field(
        None,
        "while jobs want more than the caches hold, the share of the engine's time that turns may take which find less "
        "than 0.8 of their prompts cached, larger where the caches hold few jobs; less of it is more throughput and "
        "longer waits; 0: no turn waits for it; null: the policy's",
        "chosen: policy agentcache has 0.25, of 0.15, 0.25 and 0.4 on seeds 0 and 1 "
        '(docs/results/what-did-not-work.md, "More agents than fit")',
        **SHARE,
    )


class TierConfig(KnobGroup):
    """The CPU cache (vLLM's --kv-offloading-size): what is stored there, kept and fetched."""

    enabled: bool = knob_field(
        True,
        "steer the CPU cache, under the policies agentcache…; false leaves it to vLLM",
        'measured: H200s, jobs end sooner than with vLLM\'s (docs/results.md, "Web-search agents")',
    )
    link_gb_s: float | None = knob_field(
        None,
        "gigabytes a second between the CPU cache and each GPU, one way; None takes them from the profile, or 42",
        "measured: one H200, 1,024 blocks; 33 to 52 by their number, 26 each way at once (results/link.jsonl)",
        **POSITIVE,
    )


class ReplicasConfig(KnobGroup):
    """Data parallel: a job stays at the engine that has its KV (agentcache/policy/replicas/)."""

    enabled: bool | None = knob_field(
        None, "keep each job at one engine; null: with policies that follow jobs", _BY_POLICY
    )
    spill_factor: float = knob_field(
        3.0,
        "a job moves, once, when its turn costs so many times as much at home as at an engine with room for it",
        "assumed",
        ge=1,
        le=MOST,
    )


class RouterConfig(KnobGroup):
    """A router in front of several servers (docs/routers.md)."""

    url: str | None = knob_field(
        None,
        "vllm-router that is told which sessions are over, as in http://10.0.0.1:8080",
        _OPT_IN,
        pattern=r"^https?://[^/]+$",
    )


class RuntimeConfig(KnobGroup):
    """The agent runtime's records: jobs by session, and how long tools take."""

    tool_parser: str | None = knob_field(
        None, "vLLM's tool-call parser; serve sets it from --tool-call-parser", "not tuned: serve sets it"
    )
    show_text: bool = knob_field(False, "show the text where a prompt leaves the last turn (docs/changes.md)", _OPT_IN)
    max_idle_s: float = knob_field(3600.0, "seconds after which an idle job is forgotten", "assumed", **POSITIVE)
    durations_file: str | None = knob_field(
        None,
        "file that keeps tool durations over restarts, saved every few seconds (data-parallel engines other than the "
        "first append their rank to its name, and each learns from the files of all); None keeps them in memory alone",
        _OPT_IN,
    )
    job_log: str | None = knob_field(
        None,
        "file that gets a line when a job is over, with what it took (docs/job-log.md); named:FILE adds the names that "
        "clients give; serve sets it from --job-log (data-parallel engines other than the first add their rank)",
        _OPT_IN,
        min_length=1,
    )


class RecordConfig(KnobGroup):
    """A recording of all requests without their text, for plan, simulate and replay (docs/recording.md)."""

    file: str | None = knob_field(
        None,
        "file that gets a line when a request ends; serve sets it from --record (data-parallel engines other than the "
        "first add their rank to its name)",
        _OPT_IN,
        min_length=1,
    )
    tool_names: bool = knob_field(False, "write the names of called tools, and not only salted ids", _OPT_IN)
    max_mb: int = knob_field(256, "megabytes after which a file is full", "not tuned: bounds the disk", **COUNT)
    files: int = knob_field(
        8, "files that stay, the full ones as FILE.1 and so on", "not tuned: bounds the disk", ge=1, le=1000
    )


class AgentCacheConfig(KnobGroup):
    """Everything that can be set, with policy and cost model."""

    policy: str = knob_field(
        DEFAULT_POLICY,
        "what is evicted and which request runs next (docs/policies.md)",
        'measured: a mean job latency of three quarters of vLLM\'s (docs/results.md, "Web-search agents")',
    )
    evictor: str | None = knob_field(
        None,
        "policy whose evictor takes the place of the policy's own, under the same pins, order and reuse; for "
        "ablations. All correction factors are 1 unless that is asymcache's",
        _BY_POLICY,
    )
    forced_replies: bool = knob_field(
        False, "let clients prescribe the reply tokens, for replays; not for a server that strangers reach", _OPT_IN
    )

    segments: SegmentsConfig = SegmentsConfig()
    chunking: ChunkingConfig = ChunkingConfig()
    pins: PinsConfig = PinsConfig()
    order: OrderConfig = OrderConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    tier: TierConfig = TierConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    router: RouterConfig = RouterConfig()
    tenants: Tenants | None = knob_field(
        None,
        "shares by tenant (docs/tenants.md): `by` tells them apart, `known.NAME` has their id, weight and limit; None: "
        "one order for all",
        _OPT_IN,
    )
    record: RecordConfig = RecordConfig()
    tuning: Tuning = Tuning()

    cost_profile: str | None = knob_field(
        None,
        "file that `agentcache profile` wrote on this machine for this model, or a folder with one that fits; None "
        "takes the profile that comes with agentcache, or else an analytic cost model, made of the model's config and "
        "the GPU's data sheet",
        _OPT_IN,
        min_length=1,
    )
    gpu: str | None = knob_field(
        None, "GPU whose data sheet gives the cost model; None is the GPU at hand", "not tuned: the GPU at hand"
    )
    lifespan_s: float = knob_field(
        60.0,
        "seconds of idle time at which reuse becomes unlikely; the 99th percentile of gaps is a good choice",
        "assumed; since measured on the sessions: 15 s is worse, 240 s as good "
        '(docs/results/what-did-not-work.md, "The evictor"). '
        "The paper takes the 99th percentile of gaps (Frequency Value Definition)",
        **POSITIVE,
    )

    @field_validator("gpu")
    @classmethod
    def _known_gpu(cls, name: str | None, info: ValidationInfo) -> str | None:
        # A simulated GPU that was measured needs no data sheet.
        if name is not None and name not in GPUS and info.data.get("cost_profile") is None:
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
    """Yield each knob by its dotted name, in the order of this file; constants are none."""
    for name, field in model.model_fields.items():
        if field.annotation is Tuning:
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from iterate_knobs(field.annotation, f"{parents}{name}.")
        else:
            yield parents + name, field


def iterate_constants() -> Iterator[tuple[str, FieldInfo]]:
    """Yield each constant that may be set by its dotted name, in the order of agentcache/tuning.py."""
    return ((f"tuning.{name}", field) for name, field in Tuning.model_fields.items())
