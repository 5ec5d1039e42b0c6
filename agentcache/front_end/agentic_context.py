"""Reads vllm-router's contract, `vllm_xargs.agentic_context`: which agent asks for whom, and what is to be expected.

Names of fields, their types and which of two spellings counts are the router's (0.1.17).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentcache.engine.marks import MOST_EXPECTED, Expected
from agentcache.engine.vllm.base import VLLMValidationError

FIELD = "agentic_context"
# Longer promises are taken for one of so many seconds.
LONGEST_S = 600.0
_MAX_TEXT = 16 * 1024


def _read_name(value: object) -> object:
    if not isinstance(value, str):
        return str(value) if type(value) is int else value
    # Half a surrogate pair would not reach the engine; it is refused as any other text that is none.
    return value.strip().encode().decode()


Name = Annotated[str, BeforeValidator(_read_name), Field(min_length=1, max_length=256)]
# The first agent of a task is its main one.
Agent = Annotated[Name | None, AfterValidator(lambda name: None if name == "lead" else name)]
Seconds = Annotated[float, Field(ge=0), AfterValidator(lambda seconds: min(seconds, LONGEST_S))]
Tokens = Annotated[int, Field(ge=0, le=MOST_EXPECTED)]


def _spell(*names: str) -> Any:
    return Field(default=None, validation_alias=AliasChoices(*names))


class AgenticContext(BaseModel):
    """What a client tells; fields without a use here are taken and passed over, other fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    program_id: Name | None = None
    task_id: Name | None = None
    session_id: Name | None = None
    agent_id: Agent = None
    parent_program_id: Name | None = _spell("parent_program_id", "parent_id")
    parent_agent_id: Agent = None
    root_program_id: Name | None = _spell("root_program_id", "root_id")
    blocks_parent: bool | None = _spell("blocks_parent", "blocking_parent")
    expected_resume: bool | None = None
    priority: Annotated[int, Field(ge=-MOST_EXPECTED, le=MOST_EXPECTED)] | None = None
    deadline_seconds: Seconds | None = _spell("deadline", "deadline_seconds", "request_deadline_seconds")
    expected_output_length: Tokens | None = _spell("expected_output_length", "expected_output_tokens")
    kv_retention_ttl_seconds: Seconds | None = _spell("kv_retention_ttl", "kv_retention_ttl_seconds")
    agent_role: Name | None = None
    spawn_reason: Name | None = _spell("spawn_reason", "subagent_type", "agent_type")
    request_id: Name | None = None
    step_id: Annotated[int, Field(ge=0)] | None = None

    @property
    def session(self) -> str | None:
        """The program, which has a session of its own, or the task whose agents share one; None if neither is named."""
        task = self.task_id or self.session_id
        return self.program_id or (f"{task}:{self.agent_id}" if self.parent and self.agent_id else task)

    @property
    def parent(self) -> str | None:
        """The program that has begun this one; None for a first one, and for agents of a task."""
        task = self.task_id or self.session_id
        by_agent = f"{task}:{self.parent_agent_id}" if self.program_id and self.parent_agent_id else None
        return self.parent_program_id or by_agent or self.root_program_id

    @property
    def expected(self) -> dict[str, Any]:
        """What is to be expected, as the engine reads it; without what the client leaves open."""
        return self.model_dump(include=set(Expected._fields), exclude_none=True)


def read_context(arguments: object) -> AgenticContext | None:
    """Take the contract out of a request's `vllm_xargs`, where vLLM takes no object; None if there is none.

    Raises:
        VLLMValidationError: A field is not what it should be. The server answers it as a 400.
    """
    given = arguments.pop(FIELD, None) if isinstance(arguments, dict) else None
    if given is None:
        return None
    try:
        if isinstance(given, str) and len(given) <= _MAX_TEXT:
            return AgenticContext.model_validate_json(given)
        return AgenticContext.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join([FIELD, *(str(part)[:64] for part in first["loc"][:1])])
        raise VLLMValidationError(f"{field}: {first['msg']}", parameter=field) from None
