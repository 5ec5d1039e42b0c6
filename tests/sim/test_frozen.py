"""Every decision on 40 BFCL jobs under each policy, which a change of the code alone does not move.

Where a decision is meant to change, `tests/sim/freeze.py` records it anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import vllm
from freeze import COMMAND, Digest, digest, read_digests, write_logs
from frozen_logs import CASES, KINDS, LOGS, POLICIES, TIERS, load_jobs, record
from sizes import IS_THOROUGH

NONE = Digest(0, "")
# Who hits a state waits a step less on later releases: docs/vllm-versions.md.
STATES_DIFFER = not vllm.__version__.startswith("0.32.")


# Every fifth has each policy, both tiers and all kinds of layers; `make test-thorough` has all.
@pytest.mark.parametrize("case", CASES if IS_THOROUGH else [*CASES][::5])
def test_decisions_are_those_that_were_recorded(case: str, tmp_path: Path) -> None:
    policy, tier, kind = CASES[case]
    if kind == "states" and STATES_DIFFER:
        pytest.skip("recorded on vLLM 0.32, which registers states otherwise")
    logs = record(case)
    found, stored = digest(logs), read_digests()[case]
    moved = [log for log in LOGS if found.get(log) != stored.get(log)]
    if moved:
        counts = [f"{log} ({stored.get(log, NONE).entries} -> {len(logs[log])} entries)" for log in moved]
        write_logs(logs, tmp_path / case)
        pytest.fail(
            f"policy {policy}, tier {tier}, layers {kind}: moved are {', '.join(counts)}.\n"
            "The first entry that moved is told by the logs of a checkout without the change:\n"
            f"  {COMMAND} --logs /tmp/before {case}  # there\n"
            f"  diff -r /tmp/before/{case} {tmp_path / case}"
        )


def test_every_kind_of_decision_is_made() -> None:
    entries = {case: {log: known.entries for log, known in logs.items()} for case, logs in read_digests().items()}
    assert entries.keys() == CASES.keys()
    turns = sum(len(job.replies) for job in load_jobs()[0])
    for case, (_, tier, _) in CASES.items():
        copies = {"stores", "fetches"} if tier == "cpu" else set()
        assert entries[case].keys() - {"preemptions"} == {"evictions", "admissions"} | copies, case
        assert entries[case]["admissions"] >= turns, case
    for one in (*POLICIES, *TIERS, *KINDS):
        assert any("preemptions" in entries[case] for case, parts in CASES.items() if one in parts), one
