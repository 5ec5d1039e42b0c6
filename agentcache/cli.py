"""The command line: serve, replay, simulate, plan, profile, report, doctor, knobs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcache import __version__
from agentcache.config import read_knobs
from agentcache.errors import AgentCacheError, InputError
from agentcache.jobs.arguments import add_arguments as add_job_arguments
from agentcache.jobs.arguments import lead_with_workload, read_jobs
from agentcache.models.catalog import check_servable
from agentcache.plan.settings import DEFAULT_REQUESTS, PlanSettings
from agentcache.policy.registry import DEFAULT_POLICY, POLICIES, find_policy
from agentcache.profile.settings import add_arguments as add_profile_arguments
from agentcache.profile.settings import read_settings as read_profile_settings
from agentcache.replay.settings import ReplaySettings, list_seeds, read_headers
from agentcache.run.checks import CLAIRVOYANT, refuse_clairvoyant
from agentcache.run.lane_runs import RunSettings, list_lanes
from agentcache.sim.settings import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_GPU,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_MODEL,
    DEFAULT_ROUTING,
    ROUTINGS,
    SimulationSettings,
)

if TYPE_CHECKING:
    from agentcache.report.summary import Summary

_USAGE_ERROR = 2
_OF_JOBS = (["replay"], ["simulate"])
_POLICIES = "; ".join(f"{policy.name}: {policy.summary}" for policy in POLICIES.values())
_PROFILE = (
    "what `agentcache profile` wrote, or a folder with one that fits: for any MODEL of vLLM, on its GPU "
    "(default the profile that comes along)"
)
_SEVERAL = f"may be given several times; {_POLICIES}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 2 with one line on stderr for input that cannot work."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours, engine_options = _split_at_dashes(given)
    parser = _build_parser()
    try:
        if ours[:1] == ["serve"]:
            return _serve(*parser.parse_known_args(ours), engine_options)
        options = parser.parse_args(lead_with_workload(ours) if ours[:1] in _OF_JOBS else ours)
        if engine_options and options.command not in {"replay", "profile"}:
            parser.error("only serve, replay and profile pass options behind -- on to vLLM")
        run: dict[str, Callable[[], int]] = {
            "replay": lambda: _replay(options, engine_options, given),
            "simulate": lambda: _simulate(options, given),
            "plan": lambda: _plan(options, given),
            "profile": lambda: _profile(options, engine_options),
            "report": lambda: _report(options),
            "doctor": lambda: _doctor(options),
            "knobs": lambda: _knobs(options),
        }
        return run[options.command]()
    except AgentCacheError as error:
        sys.stderr.write(f"agentcache: {error}\n")
        return _USAGE_ERROR


def _split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentcache", description="Serve LLM agents fast from your own GPUs.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="vLLM's OpenAI server with a cache policy for agents"))
    _add_replay(commands.add_parser("replay", help="run recorded agent jobs and report their latency"))
    _add_simulate(commands.add_parser("simulate", help="the same jobs and scheduler on a modelled GPU"))
    add_profile_arguments(commands.add_parser("profile", help="measure this machine for policies and simulate"))
    _add_plan(commands.add_parser("plan", help="what policies and caches would make of recorded traffic"))
    _add_report(commands.add_parser("report", help="make the report of a run again, or compare runs"))
    _add_doctor(commands.add_parser("doctor", help="why a running server's prompts were not cached, and what to do"))
    knobs = commands.add_parser("knobs", help="list every knob of the engine, its default and where that comes from")
    knobs.add_argument("name", nargs="?", metavar="NAME", help="one knob, as in pins.budget, or a group, as in pins")
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = "Takes every option of `vllm serve` besides these; `vllm serve --help=all` lists them."
    parser.allow_abbrev = False
    parser.add_argument("model", metavar="MODEL", help="a name or path as for vllm serve; tiny; shape:llama-3.1-8b")
    parser.add_argument("--policy", help=f"which blocks to evict (default {DEFAULT_POLICY}); {_POLICIES}")
    _add_knobs(parser)
    parser.add_argument(
        "--record", metavar="FILE", help="write a line for each request, without its text, for plan and simulate"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="what `agentcache profile` wrote on this machine, or a folder with one that fits",
    )
    parser.add_argument(
        "--forced-replies", action="store_true", help="let clients dictate replies, for replays; never in the open"
    )


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.description = "Options behind -- go to vLLM, as in `agentcache replay bfcl ... -- --dtype half`."
    target = parser.add_argument_group("what to run against")
    target.add_argument("--model", help="tiny, shape:llama-3.1-8b, a name or folder as for vLLM; of a server: its name")
    target.add_argument("--policy", action="append", default=[], help=_SEVERAL)
    target.add_argument("--kv-tokens", type=int, help="size of the KV cache in tokens (default: all the memory)")
    target.add_argument(
        "--seeds", type=int, nargs="+", metavar="SEED", help="run each on the same engine, into --out/seed-SEED"
    )
    target.add_argument("--base-url", help="replay against a server that runs already: http://host:8000/v1")
    target.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="with --base-url: the server's model as called here, so that jobs are written without asking the server",
    )
    target.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="with --base-url: goes along with each request, as in X-data-parallel-rank:2; may be given several times; "
        "no place for a key, since the report shows the command: OPENAI_API_KEY is",
    )
    target.add_argument("--request-timeout", type=float, default=600.0, metavar="S", help="per read (default 600)")
    _add_knobs(target)
    add_job_arguments(parser)
    _add_output(parser)


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs vLLM's scheduler with our block pool and policy under a virtual clock; no GPU is used."
    target = parser.add_argument_group("what to simulate")
    target.add_argument("--model", default=DEFAULT_MODEL, help="llama-3.1-8b, llama-3.1-70b, tiny (default the first)")
    target.add_argument("--gpu", default=DEFAULT_GPU, help="h20, h100, h200; cpu for tiny (default h200)")
    target.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs per engine (default 1)")
    target.add_argument("--policy", action="append", default=[], help=f"{_SEVERAL}; {CLAIRVOYANT}: clairvoyant")
    target.add_argument(
        "--kv-tokens", type=int, help="size of the KV cache in tokens (default what the GPU has room for)"
    )
    target.add_argument("--profile", type=Path, metavar="FILE", help=_PROFILE)
    target.add_argument("--block-size", type=int, default=DEFAULT_BLOCK_SIZE, metavar="TOKENS", help="(default 16)")
    target.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=DEFAULT_MAX_NUM_BATCHED_TOKENS,
        metavar="N",
        help="a step (default 8192)",
    )
    target.add_argument(
        "--max-num-seqs", type=int, default=DEFAULT_MAX_NUM_SEQS, metavar="N", help="requests at once (default 1024)"
    )
    target.add_argument(
        "--cpu-tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens of a second cache in the host's memory, as vLLM's --kv-offloading-size gives it (default none)",
    )
    target.add_argument(
        "--cpu-lazy",
        action="store_true",
        help="where the policy leaves that cache to vLLM, store blocks when they are about to be evicted, not at once",
    )
    target.add_argument("--replicas", type=int, default=1, metavar="N", help="engines side by side (default 1)")
    target.add_argument(
        "--routing",
        default=DEFAULT_ROUTING,
        help=f"which of them gets a request: {', '.join(ROUTINGS)} (default first)",
    )
    _add_knobs(target)
    add_job_arguments(parser)
    _add_output(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = "Simulates a recording (serve --record FILE): policies x cache sizes x DRAM sizes x engines."
    parser.add_argument(
        "recording",
        type=Path,
        metavar="FILE",
        help="the recording, or spans of OpenTelemetry; full files and those of further engines are read too",
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for simulate (default llama-3.1-8b)")
    parser.add_argument("--gpu", default=DEFAULT_GPU, help="as for simulate (default h200)")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs per engine (default 1)")
    parser.add_argument("--policy", action="append", default=[], help=f"{_SEVERAL} (default vllm and agentcache)")
    parser.add_argument(
        "--kv-tokens",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="size of the cache; may be given several times (default what the GPU has room for, its half and twice it)",
    )
    parser.add_argument(
        "--cpu-tokens",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="tokens of a second cache in DRAM; may be given several times (default none, and the first cache's)",
    )
    parser.add_argument(
        "--replicas",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="engines that share the recording, each with such caches; may be given several times (default 1)",
    )
    parser.add_argument(
        "--routing",
        help=f"which of them gets a request: {', '.join(ROUTINGS)} (default as serve chooses: the first where the "
        "policy follows jobs, else the second)",
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help=_PROFILE)
    parser.add_argument("--target", type=float, metavar="S", help="mean job latency for which GPUs are counted")
    parser.add_argument("--max-gpus", type=int, default=16, metavar="N", help="the most to count (default 16)")
    parser.add_argument(
        "--requests",
        type=int,
        default=DEFAULT_REQUESTS,
        metavar="N",
        help=f"of a longer recording the busiest N in a row are simulated (default {DEFAULT_REQUESTS})",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="simulations at once (default one a core)")
    _add_knobs(parser)
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder of plan.html (default here)")


def _add_knobs(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--agentcache",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a knob, as in segments.enabled=false; may be given several times; agentcache knobs lists them",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of events and report")
    output.add_argument("--overwrite", action="store_true", help="replace the run that --out holds")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="one run, or several to compare")
    parser.add_argument("--out", type=Path, help="where to write (default: the run's own folder; needed for several)")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="of a server started by agentcache serve: http://host:port")
    parser.add_argument("--api-key", help="the server's key (default: VLLM_API_KEY)")


def _serve(options: argparse.Namespace, vllm_options: list[str], behind_dashes: list[str]) -> int:
    # What is wrong on its own is told at once: vLLM takes seconds to load.
    if options.policy is not None:
        refuse_clairvoyant(options.policy)
        find_policy(options.policy)
    knobs = read_knobs([*options.agentcache, *_file_knobs(options)])
    check_servable(options.model)
    from agentcache.engine.compat import check_vllm

    check_vllm()
    from agentcache.server.command import serve

    serve(
        options.model,
        [*vllm_options, *behind_dashes],
        options.policy,
        forced_replies=options.forced_replies,
        knobs=knobs,
    )
    return 0


def _file_knobs(options: argparse.Namespace) -> list[str]:
    files = {"record.file": options.record, "cost_profile": options.profile}
    return [f"{name}={json.dumps(file)}" for name, file in files.items() if file is not None]


def _replay(options: argparse.Namespace, engine_options: list[str], typed: Sequence[str]) -> int:
    settings = ReplaySettings(
        **_common(options, typed),
        base_url=options.base_url,
        tokenizer=options.tokenizer,
        headers=read_headers(options.header),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        engine_options=tuple(engine_options),
        kv_tokens=options.kv_tokens,
        request_timeout_s=options.request_timeout,
    )
    lanes = options.concurrency or ()
    if options.seeds and len(lanes) > 1:
        raise InputError(
            f"--concurrency {' '.join(map(str, lanes))}: with --seeds give one number, or leave --seeds out"
        )
    runs = list_seeds(settings, options.seeds) if options.seeds else list_lanes(settings, lanes)
    for run in runs:
        run.check()
    from agentcache.replay.command import replay_all

    status, summaries = replay_all(runs)
    _show_runs(runs, summaries, options.out if len(lanes) > 1 else None)
    return status


def _simulate(options: argparse.Namespace, typed: Sequence[str]) -> int:
    settings = SimulationSettings(
        **_common(options, typed),
        gpu=options.gpu,
        profile=options.profile,
        tensor_parallel_size=options.tensor_parallel_size,
        kv_tokens=options.kv_tokens,
        block_size=options.block_size,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        cpu_tokens=options.cpu_tokens,
        cpu_lazy=options.cpu_lazy,
        replicas=options.replicas,
        routing=options.routing,
    )
    runs = list_lanes(settings, options.concurrency or ())
    for run in runs:
        run.check()
    from agentcache.engine.compat import check_vllm

    check_vllm()
    from agentcache.sim.command import simulate_all

    status, summaries = simulate_all(runs)
    _show_runs(runs, summaries, options.out if len(runs) > 1 else None)
    return status


def _plan(options: argparse.Namespace, typed: Sequence[str]) -> int:
    settings = PlanSettings(
        command=shlex.join(["agentcache", *typed]),
        recording=options.recording,
        out=options.out,
        model=options.model,
        gpu=options.gpu,
        profile=options.profile,
        tensor_parallel_size=options.tensor_parallel_size,
        policies=tuple(options.policy),
        kv_tokens=tuple(options.kv_tokens),
        cpu_tokens=tuple(options.cpu_tokens),
        replicas=tuple(options.replicas) or (1,),
        routing=options.routing,
        requests=options.requests,
        target_s=options.target,
        max_gpus=options.max_gpus,
        workers=options.workers,
        knobs=read_knobs(options.agentcache),
    )
    settings.check()
    from agentcache.engine.compat import check_vllm

    check_vllm()
    from agentcache.plan.command import plan

    return plan(settings)


def _profile(options: argparse.Namespace, engine_options: list[str]) -> int:
    settings = read_profile_settings(options, engine_options)
    settings.check()
    from agentcache.engine.compat import check_vllm

    check_vllm()
    from agentcache.profile.command import profile

    return profile(settings)


def _common(options: argparse.Namespace, typed: Sequence[str]) -> dict[str, Any]:
    """Collect what replay and simulate take alike, by the names of their settings."""
    return {
        "command": shlex.join(["agentcache", *typed]),
        "jobs": read_jobs(options),
        "out": options.out,
        "overwrite": options.overwrite,
        "policies": tuple(options.policy),
        "knobs": read_knobs(options.agentcache),
        "model": options.model,
    }


def _report(options: argparse.Namespace) -> int:
    from agentcache.report.builder import write_report
    from agentcache.report.terminal import show_report

    if options.out is None and len(options.folders) > 1:
        raise InputError("report: give --out, the folder for the comparison of several runs")
    out = options.out or options.folders[0]
    report = write_report(options.folders, out)
    for name, losses in report.losses.items():
        for loss in losses:
            sys.stderr.write(f"agentcache: {name}: {loss}\n")
    show_report(report, out)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from agentcache.doctor.command import examine, print_diagnosis

    print_diagnosis(examine(options.url, options.api_key or os.environ.get("VLLM_API_KEY")))
    return 0


def _knobs(options: argparse.Namespace) -> int:
    from agentcache.knobs import list_knobs

    sys.stdout.write("".join(f"{knob}\n" for knob in list_knobs(options.name)))
    return 0


def _show_runs(runs: Sequence[RunSettings], summaries: Sequence[Summary], together: Path | None) -> None:
    """Show the runs that began, or write one report of all of them into the folder `together` and show that."""
    from agentcache.report.builder import write_report
    from agentcache.report.terminal import show_report, show_summary

    begun = [run.out for run in runs[: len(summaries)]]
    if together is not None:
        show_report(write_report(begun, together), together)
        return
    for folder, summary in zip(begun, summaries, strict=True):
        show_summary(summary, folder)
