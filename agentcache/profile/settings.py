"""Holds and checks the options of `agentcache profile`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import InputError
from agentcache.models.catalog import check_model, short_name
from agentcache.output_folder import check_writable
from agentcache.policy.cost import MIN_BATCHES

DEFAULT_BUDGET_S = 240.0
DEFAULT_POINTS = 360


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """One field per option of `agentcache profile`, which documents them."""

    model: str
    engine_options: tuple[str, ...] = ()
    out: Path = Path()
    overwrite: bool = False
    budget_s: float = DEFAULT_BUDGET_S
    points: int = DEFAULT_POINTS
    max_tokens: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise InputError for what is wrong on its own, before anything is loaded."""
        if not self.budget_s > 0:
            raise InputError(f"--budget-s {self.budget_s:g}: give a number of seconds above 0")
        if self.points < 2 * MIN_BATCHES:
            raise InputError(f"--points {self.points}: give at least {2 * MIN_BATCHES}; hundreds are better")
        if self.max_tokens is not None and self.max_tokens < 1024:
            raise InputError(
                f"--max-tokens {self.max_tokens}: give at least 1024; short prompts do not tell terms apart"
            )
        check_model(self.model)
        check_writable(self.out)

    @property
    def model_name(self) -> str:
        """As the profile's key has it."""
        return short_name(self.model)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `agentcache profile`; those of vLLM stand behind --."""
    parser.description = (
        "Measures prefills, decodes and mixed batches on this machine and fits the cost model of the policies and the "
        "step times of simulate to them; on a CUDA device also the link to the host's memory. "
        "Options behind -- go to vLLM, as in `agentcache profile MODEL -- -tp 2`."
    )
    parser.add_argument("model", metavar="MODEL", help="a name or path as for vllm serve; tiny; shape:llama-3.1-8b")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="where the profile goes (default: here)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the profile of this engine that --out holds")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=DEFAULT_BUDGET_S,
        metavar="S",
        help=f"seconds of measuring, beside the engine's start (default {DEFAULT_BUDGET_S:g})",
    )
    parser.add_argument(
        "--points", type=int, default=DEFAULT_POINTS, metavar="N", help=f"at most so many (default {DEFAULT_POINTS})"
    )
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="longest prompt (default: 65536 on a GPU, 8192 without)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sizes and the tokens (default 0)")
