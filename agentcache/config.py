"""Every knob of the engine plug-in, as it stands in vLLM's `additional_config["agentcache"]`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentcache.errors import InputError
from agentcache.policy.presets import GPUS
from agentcache.policy.registry import DEFAULT_POLICY, find_policy

CONFIG_KEY = "agentcache"


class AgentCacheConfig(BaseModel):
    """Unknown keys are errors, so that a misspelt knob cannot pass as its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = Field(default=DEFAULT_POLICY, description="which blocks to evict; see agentcache.policy.registry")
    forced_replies: bool = Field(
        default=False,
        description="let clients dictate the reply tokens, for replays; not for a server that strangers reach",
    )

    gpu: str | None = Field(
        default=None, description="whose data sheet the cost model is made of; None is the GPU at hand"
    )
    lifespan_s: float = Field(
        default=60.0, gt=0, description="idle time at which reuse becomes unlikely; the 99th percentile of gaps is good"
    )
    reuse_probability: float = Field(default=0.5, gt=0, lt=1, description="of a block idle for lifespan_s")
    slope_ratio: float = Field(default=40.0, gt=1, description="how much faster the chance of reuse falls after that")
    lifespan_window: int = Field(default=1000, ge=1, description="reuse gaps of which the present lifespan is the mean")
    lambda_limit: float = Field(
        default=1e6, ge=1, allow_inf_nan=False, description="λ, which follows that mean, stays within 1/limit and limit"
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


def read_config(additional_config: object) -> AgentCacheConfig:
    """The plug-in's part of vLLM's `additional_config`; defaults when it is absent. Raises InputError."""
    ours = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    try:
        return AgentCacheConfig.model_validate(ours)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in (CONFIG_KEY, *first["loc"]))
        raise InputError(f"additional_config: {field}: {first['msg']}") from None
