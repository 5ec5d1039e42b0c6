"""Follows the engine's requests from their arrival to their end, for a recording. Works under any policy."""

from __future__ import annotations

import datetime
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import count
from multiprocessing import current_process
from pathlib import Path
from typing import NamedTuple

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY
from agentcache.engine.marks import is_search_step, job_name, read_agent, read_parent
from agentcache.engine.parts import Part, request_ids
from agentcache.engine.replies.ended_reply import (
    MAX_TOKENS,
    EndedReply,
    ToolReader,
    calls_of,
    describe_status,
    is_made_up,
    is_whole,
)
from agentcache.engine.request_state import RequestState
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.types import EngineCoreOutputs, Request
from agentcache.errors import InputError
from agentcache.models.catalog import short_name
from tool_runtime.learning.tool_key import ToolKey
from workloads.recording.line import VERSION, End, Header, name_file
from workloads.recording.line_maker import LineMaker, RecordedRequest
from workloads.recording.writer import LineFile, LineWriter

_MEGABYTE = 10**6
_ENDS: dict[str, End] = {"finished": "answer", "cut off": "length", "aborted": "aborted", "failed": "failed"}


_MAX_STEPS = 10_000


class SearchSteps:
    """The latest steps, to tell where a search begins. Costs O(prompt) a step; knows steps by 64 bits each."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, None] = OrderedDict()

    def begins_search(self, request: Request) -> bool:
        """Note a step; tell whether it goes on from none before, by one token more than that one's prompt."""
        prompt = memoryview(array("Q", request.prompt_token_ids or ()))
        step, before = (
            hash((request.session_id, request.cache_salt, part.tobytes())) for part in (prompt, prompt[:-1])
        )
        begins = not prompt or before not in self._steps
        self._steps[step] = None
        self._steps.move_to_end(step)
        if len(self._steps) > _MAX_STEPS:
            self._steps.popitem(last=False)
        return begins


class RequestRecorder(Part):
    """Costs O(blocks of the request) when it ends, and nothing in steps in which none begins or ends."""

    def __init__(
        self,
        writer: LineWriter,
        *,
        hashes_per_block: int,
        tool_reader: ToolReader | None,
        reads_later: bool,
        states: Mapping[str, RequestState],
        clock: Callable[[], float],
    ) -> None:
        """`hashes_per_block` of vLLM's hashes make one block of the recording. `states` are those of jobs' requests.

        `reads_later` has the writer's thread read which tools a reply calls; else it has been read when it ends.
        """
        self._writer = writer
        self._hashes_per_block = hashes_per_block
        self._tool_reader = tool_reader
        self._reads_later = reads_later
        self._states = states
        self._clock = clock
        self._running: dict[str, RecordedRequest] = {}
        self._without_token: set[str] = set()
        self._steps = SearchSteps()

    def arrived(self, request: Request) -> None:
        """Note a request that has come. Of a search only the first step is recorded, as one request for a token."""
        if is_search_step(request) and not self._steps.begins_search(request):
            return
        self._running[request.request_id] = RecordedRequest(request.request_id, self._clock())
        self._without_token.add(request.request_id)

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Note what the request found cached when it began. What it finds after a preemption does not count."""
        running = self._running.get(request.request_id)
        if running is not None and running.cached_tokens is None and request.prefill_stats is not None:
            running.cached_tokens = request.prefill_stats.num_cached_tokens

    def stepped(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        """Note which requests have their first token."""
        if not self._without_token:
            return
        for request_id in self._without_token.intersection(request_ids(outputs)):
            self._without_token.discard(request_id)
            self._running[request_id].first_token_s = self._clock()

    def ended(self, request: Request) -> None:
        """Record a request that is over."""
        running = self._running.pop(request.request_id, None)
        self._without_token.discard(request.request_id)
        if running is None:
            return
        running.ended_s = self._clock()
        if running.first_token_s is None and request.num_output_tokens:
            # The first was the last as well.
            running.first_token_s = running.ended_s
        running.prompt_tokens, running.output_tokens = request.num_prompt_tokens, request.num_output_tokens
        running.hashes = request.block_hashes[self._hashes_per_block - 1 :: self._hashes_per_block]
        running.session = self._name_job(request)
        running.thread, running.parent = read_agent(request), read_parent(request)
        running.tenant = request.cache_salt
        running.end = "length" if is_made_up(request) else _ENDS[describe_status(request)]
        self._writer.write(running, self._find_calls(request) if is_whole(request) else None)

    def _name_job(self, request: Request) -> str | None:
        """Name the job that the agent runtime takes the request for, else the one that its client names."""
        if (state := self._states.get(request.request_id)) is not None:
            return state.entry.session
        return job_name(request.session_id, request.cache_salt) if request.session_id else None

    def _find_calls(self, request: Request) -> Callable[[], Sequence[ToolKey]]:
        """Return what tells, in another thread, the calls of a whole reply."""
        if self._reads_later:
            return partial(calls_of, EndedReply.of(request, MAX_TOKENS), self._tool_reader)
        calls = calls_of(request, self._tool_reader)
        return lambda: calls

    def close(self) -> None:
        """Write what waits: the engine stops. Raises the error that has ended the writer's thread, if one has."""
        self._writer.close()

    def abandon(self) -> None:
        """Have what waits written, without waiting for it: nothing more is recorded."""
        self._writer.stop()


_SECRET_BYTES = 32
# An engine that goes on with another policy begins another recording, as the engines beside it do.
_numbers = count()


class SharedStart(NamedTuple):
    """`key` makes the ids of a recording, `id` names it. Neither tells anything of the other.

    Both are made of a secret that is drawn at the start, shared by the engines of one start so that their ids agree,
    never written, and gone with the processes.
    """

    key: bytes
    id: str


def begin_recording(config: VllmConfig) -> SharedStart:
    """Return what this engine's next recording has in common with those of the engines beside it."""
    seed = _find_secret(config) + next(_numbers).to_bytes(8, "big")
    return SharedStart(sha256(b"recording key" + seed).digest(), sha256(b"recording id" + seed).hexdigest()[:16])


def _find_secret(config: VllmConfig) -> bytes:
    """Find what all engines of a host know that one process has started, or draw it for an engine alone.

    That process gave them its key. It may start engines again, and those meet at another port. An engine alone has no
    port; the number of engines does not tell, as vLLM has those of a dense model believe that each is alone.
    """
    port = config.parallel_config.data_parallel_master_port
    if not port:
        return secrets.token_bytes(_SECRET_BYTES)
    return sha256(bytes(current_process().authkey) + str(port).encode()).digest()


def make_recorder(
    vllm_config: VllmConfig,
    config: AgentCacheConfig,
    *,
    hash_block_size: int,
    tool_reader: ToolReader | None,
    reads_later: bool,
    states: Mapping[str, RequestState],
    clock: Callable[[], float],
) -> RequestRecorder:
    """Make the recorder of `record.file`. Raises InputError for what cannot be recorded."""
    record, block_tokens = config.record, config.tuning.record_block_tokens
    assert record.file is not None
    _check(vllm_config, block_tokens, hash_block_size)
    path = name_file(Path(record.file), vllm_config.parallel_config.data_parallel_index)
    check_folder(path)

    start = begin_recording(vllm_config)
    # At once: by the one, recordings of several engines are put on one clock, and times are counted by the other.
    started_at, started_s = datetime.datetime.now(datetime.UTC), clock()
    header = Header(
        version=VERSION,
        id=start.id,
        block_tokens=block_tokens,
        # A folder may be named after its user.
        model=short_name(vllm_config.model_config.model),
        policy=config.policy,
        started_at=started_at.isoformat(timespec="microseconds"),
    )
    lines = LineMaker(key=start.key, block_tokens=block_tokens, tool_names=record.tool_names, started_s=started_s)
    file = LineFile(path, max_bytes=record.max_mb * _MEGABYTE, files=record.files)
    return RequestRecorder(
        LineWriter(file, lines, header),
        hashes_per_block=block_tokens // hash_block_size,
        tool_reader=tool_reader,
        reads_later=reads_later,
        states=states,
        clock=clock,
    )


def check_folder(path: Path) -> None:
    """Raise InputError if no file can be made there."""
    if path.exists() != path.is_file() or not path.absolute().parent.is_dir():
        problem = "is not a regular file" if path.exists() else "its folder does not exist"
        raise InputError(f"{CONFIG_KEY}.record.file (--record) {path}: {problem}; name a file in a folder that exists")


def _check(vllm_config: VllmConfig, block_tokens: int, hash_block_size: int) -> None:
    if block_tokens % hash_block_size:
        raise InputError(
            f"{CONFIG_KEY}.tuning.record_block_tokens {block_tokens}: give a multiple of the engine's block, which has "
            f"{hash_block_size} tokens"
        )
    if not vllm_config.cache_config.enable_prefix_caching:
        raise InputError(
            f"{CONFIG_KEY}.record.file: a recording is made of the prefix cache's block hashes; leave out "
            "--no-enable-prefix-caching"
        )
