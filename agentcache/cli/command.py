"""Runs each command with its options: checks them first, and loads what takes long last."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcache.cli.options import build_parser
from agentcache.config_reader import PLACE, read_knobs
from agentcache.errors import INTERRUPTED, USAGE_ERROR, AgentCacheError, InputError
from agentcache.jobs.settings import lead_with_workload, read_jobs
from agentcache.models.catalog import check_servable
from agentcache.output_folder import check_free
from agentcache.plan.settings import PlanSettings
from agentcache.policy.registry import find_policy
from agentcache.profile.settings import ProfileSettings
from agentcache.replay.settings import ReplaySettings, list_seeds, read_headers
from agentcache.run.checks import RunSettings, list_lanes
from agentcache.sim.settings import SimulationSettings, name_target
from workloads.recording.reader import read_recording

if TYPE_CHECKING:
    from agentcache.report.summary import Summary

_OF_JOBS = (["replay"], ["simulate"])
# Disk or quota.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 2 with one line on stderr for input that cannot work, 130 with one for Ctrl-C, but for commands
        that then end in another way.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours, engine_options = _split_at_dashes(given)
    parser = build_parser()
    try:
        if ours[:1] == ["serve"]:
            return _serve(*parser.parse_known_args(ours), engine_options)
        options = parser.parse_args(lead_with_workload(ours) if ours[:1] in _OF_JOBS else ours)
        if engine_options and options.command not in {"replay", "profile"}:
            raise InputError(f"{options.command}: only serve, replay and profile pass options behind -- on to vLLM")
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
        return USAGE_ERROR
    except OSError as error:
        if error.errno not in _FULL:
            raise
        sys.stderr.write(f"agentcache: --out: {error.strerror}; free some space, or give another folder\n")
        return USAGE_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("agentcache: interrupted\n")
        return INTERRUPTED


def _split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]


def _serve(options: argparse.Namespace, vllm_options: list[str], behind_dashes: list[str]) -> int:
    # What is wrong on its own is told at once: vLLM takes seconds to load.
    if options.policy is not None:
        find_policy(options.policy)
    knobs = read_knobs([*options.agentcache, *_file_knobs(options)])
    _check_model_place(options.model)
    check_servable(options.model)
    _check_vllm()
    from agentcache.server.command import serve

    try:
        serve(
            options.model,
            [*vllm_options, *behind_dashes],
            options.policy,
            forced_replies=options.forced_replies,
            knobs=knobs,
        )
    except InputError as error:
        raise InputError(_name_as_typed(str(error), options)) from error
    return 0


def _check_model_place(model: str) -> None:
    """Raise InputError for what no model is called: where MODEL is left out, the value of an option stands for it."""
    if model.replace(".", "").isdigit() and not Path(model).exists():
        raise InputError(f"serve: MODEL is missing, and {model} is no model: give it first, agentcache serve MODEL ...")


def _name_as_typed(message: str, options: argparse.Namespace) -> str:
    """Put the option that was typed in the place of the field that it sets in vLLM's configuration."""
    if not message.startswith(PLACE):
        return message
    name, _, rest = message.removeprefix(PLACE).partition(": ")
    typed = {"cost_profile": ("--profile", options.profile), "runtime.job_log": ("--job-log", options.job_log)}
    option, value = typed.get(name, ("", None))
    if value is not None:
        return f"{option} {rest}"
    is_typed = name in {pair.partition("=")[0] for pair in options.agentcache}
    return f"--agentcache {name}: {rest}" if is_typed else message


def _check_vllm() -> None:
    """Check vLLM's version. Called once settings are checked, and before what loads vLLM is imported."""
    from agentcache.engine.vllm.compat import check_vllm

    check_vllm()


def _file_knobs(options: argparse.Namespace) -> list[str]:
    files = {"record.file": options.record, "runtime.job_log": options.job_log, "cost_profile": options.profile}
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
    model, gpu = name_target(options.model, options.gpu, options.profile)
    given = {**_collect(options, SimulationSettings), **_common(options, typed)}
    settings = SimulationSettings(**{**given, "model": model, "gpu": gpu})
    runs = list_lanes(settings, options.concurrency or ())
    for run in runs:
        run.check()
    _check_vllm()
    from agentcache.sim.command import simulate_all

    status, summaries = simulate_all(runs)
    _show_runs(runs, summaries, options.out if len(runs) > 1 else None)
    return status


def _plan(options: argparse.Namespace, typed: Sequence[str]) -> int:
    model, gpu = name_target(options.model, options.gpu, options.profile)
    given = {**_collect(options, PlanSettings), **_type(options, typed), "model": model, "gpu": gpu}
    settings = PlanSettings(**{**given, "replicas": given["replicas"] or (1,)})
    settings.check()
    # vLLM alone takes half a minute to load. What can be refused is refused before.
    sys.stderr.write(f"agentcache: plan: reads {settings.recording}, then loads vLLM, which takes up to a minute\n")
    recording = read_recording(settings.recording)
    settings.check_model()
    _check_vllm()
    from agentcache.plan.command import plan

    return plan(settings, recording)


def _profile(options: argparse.Namespace, engine_options: list[str]) -> int:
    settings = ProfileSettings(**_collect(options, ProfileSettings), engine_options=tuple(engine_options))
    settings.check()
    _check_vllm()
    from agentcache.profile.command import profile

    return profile(settings)


def _collect(options: argparse.Namespace, settings: type[Any]) -> dict[str, Any]:
    """Collect the options that are called as a field of the settings is."""
    given = {each.name: getattr(options, each.name) for each in fields(settings) if hasattr(options, each.name)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _type(options: argparse.Namespace, typed: Sequence[str]) -> dict[str, Any]:
    """Collect what every command with policies is typed with, by the names of its settings."""
    return {
        "command": shlex.join(["agentcache", *typed]),
        "policies": tuple(options.policy),
        "knobs": read_knobs(options.agentcache),
    }


def _common(options: argparse.Namespace, typed: Sequence[str]) -> dict[str, Any]:
    """Collect what replay and simulate take alike."""
    own = {name: getattr(options, name) for name in ("out", "overwrite", "model")}
    return {**own, **_type(options, typed), "jobs": read_jobs(options)}


def _report(options: argparse.Namespace) -> int:
    from agentcache.report.builder import write_report
    from agentcache.report.content import HTML_FILE, SUMMARY_FILE
    from agentcache.report.terminal import show_report

    if options.out is None and len(options.folders) > 1:
        raise InputError("report: give --out, the folder for the comparison of several runs")
    out = options.out or options.folders[0]
    # A run's own report is made again without being asked for.
    if out.resolve() not in [folder.resolve() for folder in options.folders]:
        check_free(out, (SUMMARY_FILE, HTML_FILE), "report", overwrite=options.overwrite)
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
    from agentcache.config_reader import describe_knobs

    sys.stdout.write("".join(f"{knob}\n" for knob in describe_knobs(options.name)))
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
