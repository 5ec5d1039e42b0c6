"""Jobs of tau-bench: an agent of an airline or a shop, its tools, and a simulated user.

A file is what the benchmark writes: a JSON list of runs, each with its chat in `traj`. The files that come with
tau-bench (github.com/sierra-research/tau-bench, `historical_trajectories/`) hold four trials of each task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, RootModel

from agentcache.errors import InputError
from converters.chat import ChatMessage, declare_tools, read_chat
from converters.pace import Pace, pace_jobs
from converters.recorded import draw_recordings
from tool_runtime.agent.job import Job
from tool_runtime.bounds import Count
from workloads.loaded import Record, parse_record, read_whole


class _Run(Record):
    task_id: Count
    trial: Count
    traj: list[ChatMessage] = Field(min_length=1)
    reward: Any = None
    info: Any = None


class _File(RootModel[list[_Run]]):
    pass


def read_runs(path: Path, *, jobs: int | None, pace: Pace) -> list[Job]:
    """Read `jobs` runs, all for None, drawn by the seed, each a job with its text; one turn a reply of the agent.

    Tools are declared by the names that the file's runs call, for their descriptions were not recorded. Tool times are
    drawn. The agent waits for the simulated user as a conversation does for its user: the pauses are
    drawn by the same law. Raises InputError that names the file, the run's index and the field.
    """
    drawn = draw_recordings(_read_runs(path), jobs, path, pace.seed)
    return pace_jobs(drawn, pace)


def _read_runs(path: Path) -> list[Job]:
    runs = parse_record(_File, read_whole(path), str(path)).root
    messages = (message for run in runs for message in run.traj)
    tools = declare_tools(call.function.name for message in messages for call in message.tool_calls or ())
    index_of_id: dict[str, int] = {}
    read = []
    for index, run in enumerate(runs):
        job_id = f"task-{run.task_id}-trial-{run.trial}"
        if index_of_id.setdefault(job_id, index) != index:
            raise InputError(
                f"{path}: [{index}]: task_id {run.task_id} with trial {run.trial} again, after "
                f"[{index_of_id[job_id]}]; take one out"
            )
        read.append(read_chat(job_id, run.traj, f"{path}: [{index}].traj", tools))
    return read
