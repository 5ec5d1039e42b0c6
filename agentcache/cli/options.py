"""Declares the options of each command."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentcache import __version__
from agentcache.jobs.settings import add_arguments as add_job_arguments
from agentcache.option_parser import OptionParser
from agentcache.plan.settings import DEFAULT_REQUESTS
from agentcache.policy.gpus import GPUS
from agentcache.policy.registry import DEFAULT_POLICY, POLICIES
from agentcache.profile.settings import add_arguments as add_profile_arguments
from agentcache.sim.settings import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_GPU,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_MODEL,
    DEFAULT_ROUTING,
    ROUTINGS,
)

_POLICIES = "; ".join(f"{policy.name}: {policy.summary}" for policy in POLICIES.values())
_PROFILE = (
    "what `agentcache profile` wrote, or a folder with one that fits: for any MODEL of vLLM, on its GPU "
    "(default the profile that comes along, else an estimate by data sheet)"
)
_MODEL = "llama-3.1-8b, a folder with a config.json, OWNER/NAME of Hugging Face, tiny (default the first)"
_SEVERAL = f"may be given several times; {_POLICIES}"


def build_parser() -> OptionParser:
    """Make the parser of `agentcache`."""
    parser = OptionParser(prog="agentcache", description="Serve LLM agents fast from your own GPUs.")
    parser.passes_on = True
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="start vLLM's OpenAI server with a cache policy for agents"))
    _add_replay(commands.add_parser("replay", help="run recorded agent jobs and report their latency"))
    _add_simulate(commands.add_parser("simulate", help="run the same jobs and scheduler on a modelled GPU"))
    add_profile_arguments(commands.add_parser("profile", help="measure this GPU for policies and simulations"))
    _add_plan(commands.add_parser("plan", help="simulate policies and caches on recorded traffic"))
    _add_report(commands.add_parser("report", help="make the report of a run again, or compare runs"))
    _add_doctor(commands.add_parser("doctor", help="say why prompts of a server were not cached, and what to do"))
    knobs = commands.add_parser("knobs", help="list every knob of the engine, its default and where that comes from")
    knobs.add_argument("name", nargs="?", metavar="NAME", help="one knob, as in pins.budget, or a group, as in pins")
    return parser


def _add_serve(parser: OptionParser) -> None:
    parser.passes_on = True
    parser.description = "Takes every option of `vllm serve` besides these; `vllm serve --help=all` lists them."
    parser.allow_abbrev = False
    parser.add_argument("model", metavar="MODEL", help="a name or path as for vllm serve; tiny; shape:llama-3.1-8b")
    parser.add_argument("--policy", help=f"which blocks to evict (default {DEFAULT_POLICY}); {_POLICIES}")
    _add_knobs(parser)
    parser.add_argument(
        "--record", metavar="FILE", help="write a line for each request, without its text, for plan and simulate"
    )
    parser.add_argument(
        "--job-log",
        metavar="FILE",
        help="write a line for each job that is over: times, tokens, GPU seconds; named:FILE adds its session's name",
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
    _add_target(target)
    target.add_argument("--policy", action="append", default=[], help=_SEVERAL)
    target.add_argument(
        "--kv-tokens", type=int, help="size of the KV cache in tokens (default what the GPU has room for)"
    )
    _add_engine_shape(target)
    _add_knobs(target)
    add_job_arguments(parser)
    _add_output(parser)


def _add_target(parser: argparse._ActionsContainer) -> None:
    """Add what is simulated, and by which costs."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help=_MODEL)
    parser.add_argument("--gpu", default=DEFAULT_GPU, help=f"{', '.join(GPUS)} for tiny (default h200)")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs per engine (default 1)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help=_PROFILE)


def _add_engine_shape(target: argparse._ArgumentGroup) -> None:
    target.add_argument("--block-size", type=int, default=DEFAULT_BLOCK_SIZE, metavar="TOKENS", help="(default 16)")
    target.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=DEFAULT_MAX_NUM_BATCHED_TOKENS,
        metavar="N",
        help="tokens of a step (default 8192)",
    )
    target.add_argument(
        "--max-num-seqs", type=int, default=DEFAULT_MAX_NUM_SEQS, metavar="N", help="requests at once (default 1024)"
    )
    target.add_argument(
        "--cpu-tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens of a CPU cache, as vLLM's --kv-offloading-size gives it (default none)",
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


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Simulates a recording (serve --record FILE): policies x cache sizes x CPU cache sizes x engines."
    )
    parser.add_argument(
        "recording",
        type=Path,
        metavar="FILE",
        help="the recording, or spans of OpenTelemetry; full files and those of further engines are read too",
    )
    _add_target(parser)
    parser.add_argument("--policy", action="append", default=[], help=f"{_SEVERAL} (default vllm and agentcache)")
    _add_swept(parser)
    parser.add_argument(
        "--routing",
        help=f"which of them gets a request: {', '.join(ROUTINGS)} (default as serve chooses: the first where the "
        "policy follows jobs, else the second)",
    )
    parser.add_argument(
        "--target", type=float, metavar="S", dest="target_s", help="mean job latency for which GPUs are counted"
    )
    parser.add_argument("--max-gpus", type=int, default=16, metavar="N", help="the most to count (default 16)")
    parser.add_argument(
        "--requests",
        type=int,
        default=DEFAULT_REQUESTS,
        metavar="N",
        help=f"of a longer recording the busiest N in a row are simulated (default {DEFAULT_REQUESTS})",
    )
    parser.add_argument(
        "--speedup",
        type=float,
        default=1.0,
        metavar="F",
        help="F times the traffic: sessions begin closer together, tools and pauses take as long (default 1)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="simulations at once (default one a core)")
    _add_knobs(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of plan.html (default a new one: runs/plan-1, runs/plan-2, ...)"
    )
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="write the result to stdout as JSON, all else to stderr"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the plan that --out holds")


def _add_swept(parser: argparse.ArgumentParser) -> None:
    """Add what a plan may be given several values of: it simulates all their combinations."""
    meanings = {
        "--kv-tokens": "size of the cache; may be given several times (default what the GPU has room for, its half and "
        "twice it)",
        "--cpu-tokens": "tokens of a CPU cache; may be given several times (default none, and the first cache's)",
        "--replicas": "engines that share the recording, each with such caches; may be given several times (default 1)",
    }
    for flag, meaning in meanings.items():
        parser.add_argument(flag, type=int, action="append", default=[], metavar="N", help=meaning)


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
    parser.add_argument("--overwrite", action="store_true", help="replace the report that --out holds")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="of a server started by agentcache serve: http://host:port")
    parser.add_argument("--api-key", help="the server's key (default: VLLM_API_KEY)")
