from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.durations_file import find_siblings, merge_states
from tool_runtime.learning.tool_key import HUMAN, ToolKey

KEYS = (ToolKey("bash"), ToolKey("bash", "make"), ToolKey("search"), HUMAN)
GAPS = st.lists(st.tuples(st.sampled_from(KEYS), st.floats(0.01, 1e3), st.booleans(), st.integers(0, 2)), max_size=40)
TIMES_S = (0.01, 0.1, 1, 10, 100, 1000)


@given(GAPS)
def test_engines_that_share_know_what_one_engine_would(gaps: list[tuple[ToolKey, float, bool, int]]) -> None:
    engines = [Durations() for _ in range(3)]
    whole = Durations()
    for key, seconds, returned, engine in gaps:
        ended = Ended.RETURNED if returned else Ended.STILL_OUT
        engines[engine].observe(key, seconds, ended, 0.0)
        whole.observe(key, seconds, ended, 0.0)
    first = engines[0]
    # Twice: what is told again replaces what was told.
    for _ in range(2):
        first.share(merge_states(other.dump() for other in engines[1:]), 0.0)
    for key in KEYS:
        ours, theirs = first.history(key), whole.history(key)
        assert (ours.tool_count, ours.total_count) == (theirs.tool_count, theirs.total_count)
        assert ours.evidence == pytest.approx(theirs.evidence)
        assert [ours.curve.survival(t_s) for t_s in TIMES_S] == pytest.approx(
            [theirs.curve.survival(t_s) for t_s in TIMES_S]
        )


def test_what_others_know_is_bounded() -> None:
    many = Durations(max_keys=50, max_samples=4)
    for number in range(50):
        many.observe(ToolKey(f"tool {number}"), 1.0, Ended.RETURNED, float(number))
    few = Durations(max_keys=3, max_samples=4, max_pool_samples=4)
    few.share(many.dump(), 0.0)
    known = [few.history(ToolKey(f"tool {number}")).tool_count for number in range(50)]
    assert sum(known) == 3


def test_files_of_other_ranks_are_found(tmp_path: Path) -> None:
    names = ["d.json", "d.json.1", "d.json.12", "d.json.damaged", "d.json1", "other.json.1"]
    for name in names:
        (tmp_path / name).touch()
    assert {path.name for path in find_siblings(tmp_path / "d.json")} == {"d.json.1", "d.json.12"}
    assert {path.name for path in find_siblings(tmp_path / "d.json.1")} == {"d.json", "d.json.12"}
