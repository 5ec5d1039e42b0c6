"""Runs the command `agentcache` with one more policy for `simulate`: `belady-cost`, which knows the future.

    python benchmarks/clairvoyant.py simulate bfcl --policy belady-cost --policy lru …

docs/belady-cost.md says what it knows, and what it bounds.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from belady import make_clairvoyant

from agentcache.cli import main
from agentcache.errors import InputError
from agentcache.policy.registry import POLICIES
from agentcache.sim import command
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.runner import Future

NAME = "belady-cost"


class ClairvoyantSimulation(command.Simulation):
    """A simulation in which that policy may be one of several."""

    def make_engines(self, policy: str) -> tuple[list[SimulatedEngine], Future | None]:
        """Make a run's engines.

        Raises InputError where the future is not known: in closed loops, with several engines, or with a CPU cache.
        """
        if policy != NAME:
            return super().make_engines(policy)
        if self.loaded.loop is not None:
            raise InputError(f"--policy {NAME}: not with --concurrency, where what comes depends on the policy")
        engines, _ = super().make_engines(policy)
        if len(engines) > 1:
            raise InputError(f"--replicas {len(engines)}: {NAME} knows the future of one engine; leave one out")
        if self.shape.host_tokens:
            raise InputError(
                f"--cpu-tokens {self.shape.host_tokens}: {NAME} knows one cache; leave it out, or run it alone with "
                "--kv-tokens as large as both"
            )
        return engines, make_clairvoyant(engines[0], self.jobs, self.prompts, self.gpu)


def add_policy() -> None:
    """Let `agentcache simulate` know the policy, from now on in this process."""
    POLICIES[NAME] = replace(POLICIES["lru"], name=NAME, summary="clairvoyant")
    command.Simulation = ClairvoyantSimulation  # type: ignore[misc]


if __name__ == "__main__":
    add_policy()
    sys.exit(main())
