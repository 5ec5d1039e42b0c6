"""Converts a trace of others to a recording (docs/traces.md), which replay, simulate and plan take, or draws one.

python benchmarks/convert.py mooncake TRACE.jsonl --out FILE.jsonl
python benchmarks/convert.py families --jobs 36 --seed 0 --out FILE.jsonl
agentcache simulate recording:FILE.jsonl ...

Chats become tokens by the tokenizer and chat template of --model. What a trace does not say is drawn by --seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args

from converters import agent_traces, families, lmcache, mooncake
from converters.bfcl_multi_turn import read_jobs
from converters.bfcl_results import read_results
from converters.chat_sessions import tokenize
from converters.conversation import PAPER_CV, read_conversations
from converters.left_out import LeftOut
from converters.pace import Pace, user_pause
from converters.recorded import write_sessions
from converters.tau_bench import read_runs
from converters.webdancer import read_trajectories

from agentcache.errors import InputError
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import SHAPE_PREFIX, resolve_model
from agentcache.sim.settings import DEFAULT_MODEL
from tool_runtime.agent.job import Job
from workloads.pacing import ArrivalKind, draw_arrivals, parse_tool_latency

# Of chats without times, what reads them.
READERS: dict[str, tuple[Callable[..., list[Job]], str]] = {
    "bfcl_multi_turn": (read_jobs, "recorded shapes of BFCL multi-turn jobs"),
    "tau_bench": (read_runs, "a result file of tau-bench or tau2-bench"),
    "webdancer": (read_trajectories, "a file of trajectories"),
    "bfcl_results": (read_results, "an official result file of BFCL web search"),
}


def convert(arguments: Sequence[str]) -> None:
    """Convert by the words of the command line. Raises InputError for bad input, before anything is written."""
    options = build_parser().parse_args(arguments)
    options.left_out = LeftOut()
    options.convert(options)
    for line in options.left_out.describe():
        sys.stdout.write(f"{line}\n")


def convert_mooncake(options: argparse.Namespace) -> None:
    mooncake.convert(
        options.path,
        options.out,
        jobs=options.jobs,
        rate=options.rate,
        max_context=options.max_context,
        left_out=options.left_out,
    )


def convert_agent_traces(options: argparse.Namespace) -> None:
    agent_traces.convert(
        options.path,
        options.out,
        jobs=options.jobs,
        arrivals=lambda count: draw_arrivals(options.arrival, count, options.rate, options.seed),
        scale=options.scale,
        max_context=options.max_context,
        max_gap_s=options.max_gap,
        left_out=options.left_out,
    )


def convert_lmcache(options: argparse.Namespace) -> None:
    lmcache.convert(
        options.path,
        options.out,
        jobs=options.jobs,
        arrivals=lambda count: draw_arrivals("poisson", count, options.rate, options.seed),
        max_gap_s=options.max_gap,
        encode=load_tokenizer(options.model).encode,
        seed=options.seed,
        left_out=options.left_out,
    )


def draw_families(options: argparse.Namespace) -> None:
    families.convert(
        options.out,
        arrivals=draw_arrivals("poisson", options.jobs, options.rate, options.seed),
        law=families.FamilyLaw(**{each.name: getattr(options, each.name) for each in fields(families.FamilyLaw)}),
        tool=parse_tool_latency(options.tool_latency),
        seed=options.seed,
    )


def convert_conversation(options: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(options.model)
    jobs = read_conversations(
        options.path,
        jobs=options.jobs,
        rate=options.rate,
        dispersion=options.dispersion,
        turns=options.turns,
        least_turns=options.least_turns,
        reply_tokens=options.reply_tokens,
        encode=tokenizer.encode,
        scale=options.scale,
        seed=options.seed,
    )
    write_sessions(options.out, tokenize(jobs, tokenizer), kind=options.kind)


def convert_chats(options: argparse.Namespace) -> None:
    read = READERS[options.kind][0]
    pace = Pace(
        arrivals=lambda count: draw_arrivals("poisson", count, options.rate, options.seed),
        tool=parse_tool_latency(options.tool_latency),
        user=user_pause(options.dispersion / options.rate, PAPER_CV),
        seed=options.seed,
    )
    tokenizer = load_tokenizer(options.model)
    # Shapes have sizes instead of text.
    more = {"encode": tokenizer.encode} if options.kind == "bfcl_multi_turn" else {}
    jobs = read(options.path, jobs=options.jobs, pace=pace, left_out=options.left_out, **more)
    write_sessions(options.out, tokenize(jobs, tokenizer), kind=options.kind)


def load_tokenizer(model: str) -> LocalTokenizer:
    return LocalTokenizer(resolve_model(model).path)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    one = _add(kinds, "mooncake", convert_mooncake, "a trace of single requests")
    one.add_argument("--rate", type=float, help="requests per second (default: as recorded)")
    one.add_argument("--max-context", type=int, metavar="N", help="leave out requests of more than N tokens")
    text = "sessions of coding agents without text: a folder of trace_*.json, one of them, or a file of one a line"
    one = _add(kinds, "agent_traces", convert_agent_traces, text)
    _add_paced(one, rate=0.2)
    one.add_argument("--arrival", choices=get_args(ArrivalKind), default="even", help="of sessions (default even)")
    one.add_argument("--scale", type=float, default=1.0, help="factor on all sizes, in tokens (default 1)")
    one.add_argument("--max-context", type=int, metavar="N", help="end a session before it exceeds N tokens")
    _add_max_gap(one)
    one = _add(kinds, "lmcache", convert_lmcache, "agents that LMCache recorded: a folder of *.jsonl, or one of them")
    _add_drawn(one, rate=0.5)
    _add_max_gap(one)
    one = _add(kinds, "conversation", convert_conversation, "questions about documents of LooGLE or LongBench")
    _add_drawn(one, rate=0.2)
    _add_dispersion(one)
    one.add_argument("--scale", type=float, default=1.0, help="share of each document that is kept (default 1)")
    one.add_argument("--turns", type=int, default=8, help="most questions of a conversation (default 8)")
    one.add_argument("--least-turns", type=int, metavar="N", help="draw the number of turns from N to --turns")
    one.add_argument("--reply-tokens", type=int, metavar="N", help="lengthen replies that have fewer tokens")
    text = "sessions with sub-agents, bursts, compaction and pauses, drawn by published figures"
    one = _add_kind(kinds, "families", draw_families, text)
    one.add_argument("--jobs", type=int, default=36, help="how many sessions (default 36)")
    _add_paced(one, rate=0.3)
    one.add_argument("--tool-latency", default="bfcl", help="as of `agentcache simulate` (default bfcl)")
    for each in fields(families.FamilyLaw):
        flag = "--" + each.name.replace("_", "-")
        one.add_argument(flag, type=type(each.default), default=each.default, help="default %(default)s")
    for kind, (_, summary) in READERS.items():
        one = _add(kinds, kind, convert_chats, summary)
        _add_drawn(one, rate=0.5)
        _add_dispersion(one)
        one.add_argument("--tool-latency", default="bfcl", help="as of `agentcache simulate` (default bfcl)")
    return parser


def _add(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser],
    kind: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
) -> argparse.ArgumentParser:
    parser = _add_kind(kinds, kind, run, summary)
    parser.add_argument("path", type=Path, metavar="PATH")
    parser.add_argument("--jobs", type=int, help="how many (default: all)")
    return parser


def _add_kind(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser],
    kind: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
) -> argparse.ArgumentParser:
    parser = kinds.add_parser(kind, help=summary, description=summary)
    parser.set_defaults(convert=run)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    return parser


def _add_paced(parser: argparse.ArgumentParser, rate: float) -> None:
    parser.add_argument("--rate", type=float, default=rate, help=f"jobs per second (default {rate})")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn: jobs, arrivals, times (default 0)")


def _add_max_gap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-gap", type=float, default=60.0, metavar="S", help="longest wait (default 60)")


def _add_drawn(parser: argparse.ArgumentParser, rate: float) -> None:
    _add_paced(parser, rate)
    parser.add_argument("--model", default=SHAPE_PREFIX + DEFAULT_MODEL, help="whose tokenizer (default %(default)s)")


def _add_dispersion(parser: argparse.ArgumentParser) -> None:
    text = "mean pause of a user times the rate (default 5)"
    parser.add_argument("--dispersion", type=float, default=5.0, metavar="R", help=text)


if __name__ == "__main__":
    try:
        convert(sys.argv[1:])
    except InputError as error:
        sys.exit(f"convert.py: {error}")
