"""Every knob of the engine plug-in, as it stands in vLLM's `additional_config["agentcache"]`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentcache.errors import InputError
from agentcache.policy.presets import GPUS
from agentcache.policy.registry import DEFAULT_POLICY, find_policy

CONFIG_KEY = "agentcache"


class SegmentsConfig(BaseModel):
    """Multi-Segment Attention: cached blocks are reused behind gaps, not only as a prefix."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = Field(default=None, description="None leaves it to the policy")
    max_gaps: int = Field(default=8, ge=1, description="fill rows of one request; the islands worth least are dropped")
    row_s: float = Field(
        default=0.7e-3,
        ge=0,
        allow_inf_nan=False,
        description="seconds of a fill row beside its tokens; islands that save less are dropped",
    )


class ChunkingConfig(BaseModel):
    """Adaptive chunking: many running decodes make a step's prefill budget smaller, so that they wait less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = Field(default=None, description="None leaves it to the policy")
    threshold: int = Field(default=32, ge=1, description="running decodes above which the budget shrinks")
    floor: int = Field(default=1024, ge=1, description="tokens of prefill that every step may have")


class GroupedConfig(BaseModel):
    """What policy `agentcache` learns of the waits between a request and the next one that uses its blocks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int = Field(default=4000, ge=1, description="requests after which all that was observed counts for half")
    prior_returns: float = Field(
        default=0.1,
        gt=0,
        allow_inf_nan=False,
        description="returns at each age (four to a doubling) after which a class of requests counts as much as all "
        "classes together, and these as much as what is assumed of them",
    )
    least_wait_s: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="added to every wait: differences far below it do not count"
    )


class PinsConfig(BaseModel):
    """The KV of a job whose tool runs is the last to be taken, for a time, within a budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = Field(default=None, description="None leaves it to the policy")
    budget: float = Field(default=1.0, ge=0, le=1, description="share of the cache that pins may take")
    tenant_budget: float = Field(default=1.0, ge=0, le=1, description="share of that for one tenant (cache_salt)")
    max_ttl_s: float = Field(
        default=5.0, gt=0, allow_inf_nan=False, description="a pin is decided upon anew after that"
    )
    min_chance: float = Field(default=0.3, ge=0, le=1, description="of the return within that time, else there is none")


class OrderConfig(BaseModel):
    """Which request comes next: returning jobs before new ones, and nobody waits for ever."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = Field(default=None, description="None leaves it to the policy")
    seniority_s: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="for how much it counts at most that a job is older; None leaves it to the policy",
    )
    patience_s: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="who has waited for so long goes first; None leaves it to the policy",
    )


class RuntimeConfig(BaseModel):
    """The agent runtime's records: jobs by session, and how long tools take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool_parser: str | None = Field(
        default=None, description="vLLM's tool-call parser; serve sets it from --tool-call-parser"
    )
    max_jobs: int = Field(default=10_000, ge=1, description="jobs remembered; the longest idle leave first")
    max_idle_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False, description="idle jobs leave after that")
    durations_file: str | None = Field(
        default=None,
        description="where tool durations are kept over restarts, saved once a minute (data-parallel engines but the "
        "first put their rank behind it); None keeps them in memory alone",
    )


class AgentCacheConfig(BaseModel):
    """Unknown keys are errors, so that a misspelt knob cannot pass as its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = Field(default=DEFAULT_POLICY, description="which blocks to evict; see agentcache.policy.registry")
    forced_replies: bool = Field(
        default=False,
        description="let clients dictate the reply tokens, for replays; not for a server that strangers reach",
    )

    segments: SegmentsConfig = SegmentsConfig()
    chunking: ChunkingConfig = ChunkingConfig()
    grouped: GroupedConfig = GroupedConfig()
    pins: PinsConfig = PinsConfig()
    order: OrderConfig = OrderConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    gpu: str | None = Field(
        default=None, description="whose data sheet the cost model is made of; None is the GPU at hand"
    )
    lifespan_s: float = Field(
        default=60.0, gt=0, description="idle time at which reuse becomes unlikely; the 99th percentile of gaps is good"
    )
    reuse_probability: float = Field(default=0.5, gt=0, lt=1, description="of a block idle for lifespan_s")
    slope_ratio: float = Field(default=40.0, gt=1, description="how much faster the chance of reuse falls after that")
    lifespan_window: int = Field(default=1000, ge=1, description="reuse gaps of which the present lifespan is the mean")
    # λ grows with the exponential of that mean, so that a limit which looks large pins it to one side.
    lambda_limit: float = Field(
        default=1e300, ge=1, le=1e300, description="λ, which follows that mean, stays within 1/limit and limit"
    )

    @field_validator("gpu")
    @classmethod
    def _known_gpu(cls, name: str | None) -> str | None:
        if name is not None and name not in GPUS:
            raise InputError(f"additional_config: {CONFIG_KEY}.gpu: {name} is unknown; choose from {', '.join(GPUS)}")
        return name

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, name: str) -> str:
        return find_policy(name).name


def is_on(wanted: bool | None, by_policy: bool) -> bool:
    """Whether a part is on: what the knob says, else what the policy brings."""
    return by_policy if wanted is None else wanted


def read_config(additional_config: object) -> AgentCacheConfig:
    """The plug-in's part of vLLM's `additional_config`; defaults when it is absent. Raises InputError."""
    ours = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    try:
        return AgentCacheConfig.model_validate(ours)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in (CONFIG_KEY, *first["loc"]))
        raise InputError(f"additional_config: {field}: {first['msg']}") from None


def read_knobs(pairs: Sequence[str]) -> dict[str, Any]:
    """`["segments.enabled=false", "lifespan_s=30"]`, as typed behind --agentcache, as the config's nested fields.

    Raises InputError for what no config can be made of.
    """
    knobs: dict[str, Any] = {}
    for pair in pairs:
        path, separator, text = pair.partition("=")
        if not separator:
            raise InputError(f"--agentcache {pair}: give NAME=VALUE, as in segments.enabled=false")
        *parents, name = path.split(".")
        place = knobs
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"--agentcache {pair}: {parent} is given a value of its own as well; leave one out")
        place[name] = _read_value(text)
    read_config({CONFIG_KEY: knobs})
    return knobs


def list_knobs(knobs: Mapping[str, Any]) -> dict[str, str | int | float | bool | None]:
    """The same knobs by their dotted names, as a run's record shows them."""
    listed: dict[str, str | int | float | bool | None] = {}
    for name, value in knobs.items():
        inner = list_knobs(value) if isinstance(value, Mapping) else {"": value}
        listed |= {f"{name}.{rest}".removesuffix("."): each for rest, each in inner.items()}
    return listed


def _read_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
