"""Records a run: `run.json` says what was run, `events.jsonl` has a line per request, tool call, job and policy.

All times are seconds since the policy's run began, on one monotonic clock. Lines are written as things end, so
a run that breaks leaves every finished request behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentcache.errors import InputError

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
# The error of a session that was under way when a closed loop had been measured.
MEASURED = "the time to measure was over"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RequestEvent(_Record):
    """One LLM request: turn `turn` (from 0) of a job, as the client saw it and as the server timed it.

    Turns of a sub-agent, which is the job's `thread`, are counted for themselves.
    """

    type: Literal["request"] = "request"
    policy: str
    job: str
    thread: str | None = None
    turn: int
    sent_s: float
    first_token_s: float | None = Field(description="None when the request failed before its first token")
    finished_s: float
    queue_s: float | None = Field(default=None, description="server: arrival to first scheduled")
    prefill_s: float | None = Field(default=None, description="server: first scheduled to first token")
    decode_s: float | None = Field(default=None, description="server: first token to last token")
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = Field(
        default=None, description="prompt tokens served from the cache; None where the server does not tell"
    )
    reusable_tokens: int = Field(
        default=0, description="prompt tokens, in whole blocks, whose KV this job's previous turn had in the cache"
    )
    engine: int | None = Field(default=None, description="several engines of a simulation: the one that served it")
    left_tokens: int | None = Field(
        default=None,
        description="several engines of a simulation: prompt tokens that are cached at the engine which the job has "
        "left with this turn, as far as can be told from what was sent there",
    )
    infinite_tokens: int | None = Field(
        default=None,
        description="closed loops: prompt tokens that a cache without evictions would serve, whosever they were",
    )
    retries: int = Field(default=0, description="connection errors that were tried again")
    diverged_at: int | None = Field(
        default=None,
        description="first token at which this prompt does not extend the last prompt plus output or, of a job without "
        "text, is not the recorded one",
    )
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token at the client."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, at the client; None for replies of one token."""
        if self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def recomputed_tokens(self) -> int | None:
        """Tokens that were in the cache when the previous turn ended and had to be computed again."""
        return None if self.cached_tokens is None else max(0, self.reusable_tokens - self.cached_tokens)

    @property
    def elsewhere_tokens(self) -> int | None:
        """Of the recomputed tokens, those that are cached at the engine which the job has left with this turn."""
        if self.left_tokens is None or self.cached_tokens is None:
            return None
        return max(0, min(self.left_tokens, self.reusable_tokens) - self.cached_tokens)


class ToolCallEvent(_Record):
    """One tool call of turn `turn`, `error` if it ended in an error result."""

    type: Literal["tool_call"] = "tool_call"
    policy: str
    job: str
    thread: str | None = None
    turn: int
    tool: str
    started_s: float
    finished_s: float
    error: str | None = None


class JobEvent(_Record):
    """The end of one job. Latency is from its first request sent to its main agent's last reply received."""

    type: Literal["job"] = "job"
    policy: str
    job: str
    tenant: str | None = None
    started_s: float
    finished_s: float
    turns: int
    status: Literal["finished", "failed", "interrupted"]
    error: str | None = None


class PolicyEvent(_Record):
    """The end of one policy's run: what only the server knows. None where it did not say."""

    type: Literal["policy"] = "policy"
    policy: str
    block_size: int | None = None
    cache_tokens: int | None = None
    preemptions: int | None = None
    evictions: dict[str, int] | None = Field(default=None, description="blocks that lost reusable KV, by cause")
    hit_tokens: dict[str, int] | None = Field(
        default=None,
        description="where there are two caches: prompt tokens of all requests that were hit on the GPU (`gpu`), and "
        "that were fetched from a disk (`disk`) or from elsewhere (`host`; live also `elsewhere`)",
    )
    waits_s: dict[str, float] | None = Field(
        default=None,
        description="seconds that all requests waited before they ran, by reason (docs/metrics.md), of policies that "
        "follow jobs",
    )
    engine_startup_s: float | None = None
    prefill_s: float | None = Field(default=None, description="modelled seconds of prefill, of a simulation")
    busy_s: tuple[float, ...] | None = Field(
        default=None, description="modelled seconds of work of each engine, of a simulation"
    )
    model_runner: Literal["V1", "V2"] | None = None
    gpus: int = Field(default=1, description="of the engine; 1 where the server is not ours")
    window_s: tuple[float, float] | None = Field(
        default=None, description="closed loops: begin and end of the time that is measured"
    )
    broken_off: bool = Field(default=False, description="closed loops: the run was interrupted, and `window_s` with it")


class RunRecord(_Record):
    """The facts of a run, for the head of the report. `device` is a GPU's name or "CPU backend".

    `jobs` is how many there are, at least, in a closed loop of so many `lanes`. `losses` are those of the notes that
    say what of the workload could not be read, or was never recorded.
    """

    command: str
    started_at: str
    workload: str
    model: str
    device: str
    seed: int
    jobs: int
    lanes: int | None = None
    cache_tokens: int | None
    settings: dict[str, str | int | float | bool | None]
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()


Event = Annotated[RequestEvent | ToolCallEvent | JobEvent | PolicyEvent, Field(discriminator="type")]
_EVENT: TypeAdapter[RequestEvent | ToolCallEvent | JobEvent | PolicyEvent] = TypeAdapter(Event)


class EventSink(Protocol):
    """Takes the events of a run as they happen."""

    def write(self, event: Event) -> None:
        """Take one event."""


class EventWriter:
    """Appends events to `events.jsonl`, each line on disk before `write` returns to the run."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / EVENTS_FILE).open("a", encoding="utf-8")

    def write(self, event: Event) -> None:
        """Append one event."""
        self._file.write(event.model_dump_json() + "\n")
        self._file.flush()

    def __enter__(self) -> EventWriter:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()


def write_run_record(folder: Path, record: RunRecord) -> None:
    """Write the run's record into its folder."""
    (folder / RUN_FILE).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_run_record(folder: Path) -> RunRecord:
    """Read the run's record. Raises InputError when the folder holds no run or a broken record."""
    path = folder / RUN_FILE
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} holds no run: {RUN_FILE} is missing; give the --out folder of a replay") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise InputError(f"{path}: not a run record ({_first_problem(error)})") from None


def read_events(folder: Path) -> Iterator[RequestEvent | ToolCallEvent | JobEvent | PolicyEvent]:
    """Read events in the order written. A last line that was cut off is left out.

    Raises InputError for any other broken line.
    """
    *whole, _ = _read_lines(folder)
    for number, line in enumerate(whole, start=1):
        try:
            yield _EVENT.validate_json(line)
        except ValidationError as error:
            problem = _first_problem(error)
            raise InputError(f"{folder / EVENTS_FILE}:{number}: not an event ({problem})") from None


def is_cut_off(folder: Path) -> bool:
    """Tell whether `read_events` leaves out a last line."""
    return _read_lines(folder)[-1] != b""


def _read_lines(folder: Path) -> list[bytes]:
    """Read the lines. Every whole one ends in a newline, so the last of these is empty, or the rest of a torn write."""
    path = folder / EVENTS_FILE
    try:
        return path.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} holds no run: {EVENTS_FILE} is missing") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
