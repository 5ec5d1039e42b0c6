"""Parses options by argparse, with errors of one line that name the option that was probably meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from agentcache.errors import InputError, suggest


class OptionParser(argparse.ArgumentParser):
    """Raises InputError for what argparse answers with its usage. Python's own parser suggests choices from 3.14 on."""

    passes_on = False
    """Whether options that it does not know are for somebody else."""
    elsewhere: Sequence[str] = ()
    """Options of somebody else's, which may have been meant as well."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse; the second of the pair is empty unless the parser passes on what it does not know."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown and not self.passes_on:
            known = [*self._option_string_actions, *self.elsewhere]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_suggest_option(unknown, known)}")
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            meant = suggest(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{meant}") from None

    def error(self, message: str) -> NoReturn:
        """Raise InputError with the command's name in front, or nothing for one that has no commands."""
        _, _, command = self.prog.partition(" ")
        hint = "" if message.endswith("?") else f"; {self.prog} --help lists what there is"
        raise InputError(f"{command}: {message}{hint}" if command else f"{message}{hint}")


def _suggest_option(words: Iterable[str], known: Sequence[str]) -> str:
    """Suggest an option for the first of the words that looks like one."""
    name = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    # No short one for a long one: vLLM's are close to many words.
    return "" if name is None else suggest(name, (each for each in known if each.startswith(name[:2])))
