"""Records anew what `test_frozen.py` compares with, or writes the logs to compare them entry by entry.

    .venv/bin/python tests/sim/freeze.py [CASE ...]                   # the digests, in frozen_digests.json
    .venv/bin/python tests/sim/freeze.py --logs FOLDER [CASE ...]     # the logs, in FOLDER/CASE, and no digests

Beside the new digests goes a table of a simulation that says what the change is good for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from frozen_logs import CASES, record

COMMAND = ".venv/bin/python tests/sim/freeze.py"
DIGESTS = Path(__file__).with_name("frozen_digests.json")


class Digest(NamedTuple):
    """What stands for a log."""

    entries: int
    sha256: str


Logs = Mapping[str, Sequence[str]]


def digest(logs: Logs) -> dict[str, Digest]:
    """Of each log that has entries. Half of a SHA-256 tells any two apart."""
    return {
        log: Digest(len(entries), hashlib.sha256("\n".join(entries).encode()).hexdigest()[:32])
        for log, entries in logs.items()
        if entries
    }


def read_digests() -> dict[str, dict[str, Digest]]:
    """By case and log."""
    stored = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return {case: {log: Digest(*each) for log, each in logs.items()} for case, logs in stored.items()}


def store_digests(digests: Mapping[str, Mapping[str, Digest]]) -> None:
    """A log a line, for the diff."""
    cases = [
        f"  {json.dumps(case)}: {{\n"
        + ",\n".join(f"    {json.dumps(log)}: {json.dumps(each)}" for log, each in logs.items())
        + "\n  }"
        for case, logs in digests.items()
    ]
    DIGESTS.write_text("{\n" + ",\n".join(cases) + "\n}\n", encoding="utf-8")


def write_logs(logs: Logs, folder: Path) -> None:
    """An entry a line, a file a log."""
    folder.mkdir(parents=True, exist_ok=True)
    for log, entries in logs.items():
        (folder / f"{log}.txt").write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="policy-gpu-kind or policy-cpu-kind; default: all")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="write the logs there, and record nothing")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    logging.disable(logging.CRITICAL)
    digests = {} if arguments.logs or not arguments.cases else read_digests()
    for case in arguments.cases or CASES:
        began = time.process_time()
        logs = record(case)
        if arguments.logs:
            write_logs(logs, arguments.logs / case)
        digests[case] = digest(logs)
        entries = ", ".join(f"{len(log)} {name}" for name, log in logs.items())
        print(f"{case}: {entries}; {time.process_time() - began:.1f} s")  # noqa: T201
    if not arguments.logs:
        store_digests(digests)


if __name__ == "__main__":
    main()
