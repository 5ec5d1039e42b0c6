from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hand_clock import Clock
from tracked_requests import ASKED, BASH, Tracked

from agentcache.engine import durations_keeper
from agentcache.engine.durations_keeper import DurationsKeeper
from tool_runtime.durations import Durations, Ended
from tool_runtime.durations_file import load_durations
from tool_runtime.tool_key import ToolKey

TOOL = ToolKey("bash")


class Kept:
    """A keeper over durations that are learned by hand."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.durations = Durations()
        self.path = path
        self.keeper = DurationsKeeper(path, self.durations, self.clock)

    def learn(self, seconds: float = 3.0) -> None:
        self.durations.observe(TOOL, seconds, Ended.RETURNED, self.clock())

    def step(self, after_s: float) -> None:
        """What the step began to write is written behind it."""
        self.clock.now_s += after_s
        self.keeper.step()
        if self.keeper._writer is not None:
            self.keeper._writer.join()

    def saved(self) -> int:
        """How many gaps the file knows of."""
        states, problem = load_durations(self.path)
        assert problem is None
        return sum(state.count for state in states if state.key == TOOL)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "durations.json")


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(durations_keeper.logger, "warning", lambda text, *values: lines.append(text % values))
    return lines


def test_what_is_new_is_saved_once_a_minute(kept: Kept) -> None:
    kept.learn()
    kept.step(after_s=59)
    assert not kept.path.exists()
    kept.step(after_s=1)
    assert kept.saved() == 1
    kept.learn()
    kept.step(after_s=59.5)
    assert kept.saved() == 1
    kept.step(after_s=0.5)
    assert kept.saved() == 2


def test_where_nothing_is_new_nothing_is_written(kept: Kept) -> None:
    kept.step(after_s=100)
    kept.keeper.close()
    assert not kept.path.exists()
    kept.learn()
    kept.step(after_s=60)
    kept.path.unlink()
    kept.step(after_s=60)
    kept.keeper.close()
    assert not kept.path.exists()


def test_the_end_saves_what_is_new_and_the_next_start_goes_on_from_there(kept: Kept) -> None:
    for seconds in (2.0, 4.0):
        kept.learn(seconds)
    kept.keeper.close()
    kept.keeper.close()
    again = Kept(kept.path)
    assert again.durations.history(TOOL).tool_mean_s == 3.0
    again.keeper.close()
    again.learn(6.0)
    again.keeper.close()
    assert kept.saved() == 3


def test_a_damaged_file_is_one_line_and_the_engine_goes_on(tmp_path: Path, warnings: list[str]) -> None:
    path = tmp_path / "durations.json"
    path.write_bytes(b"\x00 not json")
    kept = Kept(path)
    (line,) = warnings
    assert line.startswith(f"{path}: no file of tool durations (")
    assert "\n" not in line
    kept.learn()
    kept.step(after_s=60)
    assert kept.saved() == 1
    assert (tmp_path / "durations.json.damaged").read_bytes() == b"\x00 not json"


def test_a_place_that_cannot_be_written_is_one_line_however_often(tmp_path: Path, warnings: list[str]) -> None:
    kept = Kept(tmp_path / "missing" / "durations.json")
    for _ in range(5):
        kept.learn()
        kept.step(after_s=60)
    kept.learn()
    kept.keeper.close()
    assert warnings == [f"{kept.path}: tool durations were not saved: No such file or directory"]
    kept.path.parent.mkdir()
    kept.learn()
    kept.keeper.close()
    assert kept.saved() == 7


def test_the_engine_does_not_wait_for_the_disk_and_saves_do_not_pile_up(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun = threading.Event(), []
    save = durations_keeper.save_durations

    def save_slowly(states: object, path: Path) -> str | None:
        begun.append(threading.current_thread())
        assert go_on.wait(30)
        return save(states, path)  # type: ignore[arg-type]

    monkeypatch.setattr(durations_keeper, "save_durations", save_slowly)
    for _ in range(5):
        kept.learn()
        kept.clock.now_s += 60
        kept.keeper.step()
    # Learned while the first save was under way: that is of what was known when it began.
    go_on.set()
    assert kept.keeper._writer is not None
    kept.keeper._writer.join()
    assert (len(begun), kept.saved()) == (1, 1)
    assert begun[0] is not threading.current_thread()
    assert begun[0].daemon
    kept.keeper.close()
    assert kept.saved() == 5


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(durations_keeper, "_LAST_SAVE_S", 0.0)
    monkeypatch.setattr(durations_keeper, "save_durations", lambda *_: go_on.wait(30) and None)
    kept.learn()
    kept.keeper.close()
    go_on.set()
    assert warnings == [f"{kept.path}: tool durations were not saved: the disk takes too long"]


@pytest.mark.parametrize("jump_s", [-5000.0, 1e9])
def test_a_clock_that_jumps_stops_no_save(kept: Kept, jump_s: float) -> None:
    kept.learn()
    kept.step(after_s=jump_s)
    assert kept.saved() == 1
    kept.learn()
    kept.step(after_s=60)
    assert kept.saved() == 2


def test_steps_and_the_end_of_the_engine_reach_the_file(kept: Kept) -> None:
    tracked = Tracked(keeper=kept.keeper)
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.turn("b", [*known, 5], session="s")
    kept.learn()
    kept.clock.now_s += 60
    tracked.tracker.step()
    assert kept.keeper._writer is not None
    kept.keeper._writer.join()
    assert kept.saved() == 1
    kept.learn()
    tracked.tracker.close()
    assert kept.saved() == 2
