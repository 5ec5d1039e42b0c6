"""Gives the command line: serve, replay, simulate, plan, profile, report, doctor, knobs."""

from agentcache.cli.command import main

__all__ = ["main"]
