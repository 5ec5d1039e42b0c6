"""Every knob of the engine plug-in, as it stands in vLLM's `additional_config["agentcache"]`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentcache.errors import InputError
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
