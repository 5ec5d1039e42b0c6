from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hand_clock import Clock
from tracked_requests import ASKED, BASH, Tracked

from agentcache.config import RuntimeConfig
from agentcache.engine.jobs.duration_files import check_files, open_store
from agentcache.errors import InputError
from tool_runtime.learning import duration_store
from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.durations_file import load_durations
from tool_runtime.learning.tool_key import ToolKey

TOOL = ToolKey("bash")


class Kept:
    """A store over durations that are learned by hand."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.durations = Durations()
        self.path = path
        self.store = open_store(path, self.durations, self.clock)

    def learn(self, seconds: float = 3.0) -> None:
        self.durations.observe(TOOL, seconds, Ended.RETURNED, self.clock())

    def saved(self) -> int:
        """How many gaps the file knows of."""
        states, problem = load_durations(self.path)
        assert problem is None
        return sum(state.count for state in states if state.key == TOOL)

    def await_saved(self, count: int) -> None:
        deadline_s = time.monotonic() + 30
        while self.saved() != count:
            assert time.monotonic() < deadline_s, "nothing is saved"
            time.sleep(0.001)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "durations.json")


@pytest.fixture
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two saves there is no pause to speak of."""
    monkeypatch.setattr(duration_store, "LEAST_PAUSE_S", 0.001)
    monkeypatch.setattr(duration_store, "PAUSE_PER_SAVE", 0.0)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(duration_store.logger, "warning", lambda text, *values: lines.append(text % values))
    return lines


@pytest.mark.usefixtures("_in_no_time")
def test_an_idle_engine_saves_what_is_new(kept: Kept) -> None:
    kept.store.step()
    for count in (1, 2):
        kept.learn()
        kept.await_saved(count)
    kept.store.close()


@pytest.mark.usefixtures("_in_no_time")
def test_the_engine_goes_on_learning_while_it_is_saved(kept: Kept) -> None:
    kept.store.step()
    for number in range(3000):
        kept.durations.observe(ToolKey("bash", str(number)), 3.0, Ended.RETURNED, kept.clock())
    kept.store.close()
    assert kept.saved() == 3000


@pytest.mark.usefixtures("_in_no_time")
def test_an_engine_that_goes_on_after_a_close_saves_again(kept: Kept, warnings: list[str]) -> None:
    kept.learn()
    kept.store.close()
    assert kept.saved() == 1
    kept.learn()
    kept.store.step()
    kept.await_saved(2)
    kept.learn()
    kept.store.close()
    assert kept.saved() == 3
    assert warnings == [], "each save has ended"


def test_where_nothing_is_new_nothing_is_written(kept: Kept) -> None:
    kept.store.step()
    kept.store.close()
    assert not kept.path.exists()


def test_the_next_start_goes_on_from_what_the_end_saved(kept: Kept) -> None:
    for seconds in (2.0, 4.0):
        kept.learn(seconds)
    kept.store.close()
    kept.store.close()
    again = Kept(kept.path)
    assert again.durations.history(TOOL).tool_mean_s == 3.0
    again.learn(6.0)
    again.store.close()
    assert kept.saved() == 3


def test_a_damaged_file_is_one_line_and_the_engine_goes_on(tmp_path: Path, warnings: list[str]) -> None:
    path = tmp_path / "durations.json"
    path.write_bytes(b'{"format":"agentcache durations","version":1,"rec')
    kept = Kept(path)
    (line,) = warnings
    assert line.startswith(f"{path}: tool durations are damaged (")
    assert "\n" not in line
    kept.learn()
    kept.store.close()
    assert kept.saved() == 1
    assert (tmp_path / "durations.json.damaged").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path, rank: int) -> None:
    runtime = RuntimeConfig(durations_file=str(tmp_path / "durations.json"))
    check_files(runtime, range(2))
    path = tmp_path / ("durations.json.1" if rank else "durations.json")
    path.write_text("somebody's")
    text = f"additional_config: agentcache.runtime.durations_file: {path} is not a file of tool durations; name one"
    with pytest.raises(InputError) as caught:
        check_files(runtime, range(2))
    assert str(caught.value).startswith(text)
    with pytest.raises(InputError, match="is not a file of tool durations"):
        Kept(path)
    assert path.read_text() == "somebody's"
    check_files(RuntimeConfig(), range(2))


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, warnings: list[str]) -> None:
    kept = Kept(tmp_path / "missing" / "durations.json")
    for _ in range(5):
        kept.learn()
        kept.store._save_new()
    assert warnings == [f"{kept.path}: tool durations were not saved: No such file or directory"]
    kept.path.parent.mkdir()
    kept.learn()
    kept.store.close()
    assert kept.saved() == 6


@pytest.mark.usefixtures("_in_no_time")
def test_the_engine_does_not_wait_for_the_disk(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()
    save = duration_store.save_durations

    def save_slowly(states: object, path: Path) -> str | None:
        assert threading.current_thread().daemon
        begun.set()
        assert go_on.wait(30)
        return save(states, path)  # type: ignore[arg-type]

    monkeypatch.setattr(duration_store, "save_durations", save_slowly)
    kept.learn()
    kept.store.step()
    assert begun.wait(30)
    kept.learn()
    kept.store.step()
    assert not kept.path.exists()
    go_on.set()
    # Learned while the first save was under way.
    kept.await_saved(2)
    kept.store.close()


def test_long_saves_come_seldom(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a hundredth of the time goes into writing."""
    now_s, pauses_s = [0.0], []

    def pause(pause_s: float) -> bool:
        pauses_s.append(pause_s)
        return len(pauses_s) > 2

    def save(*_: object) -> None:
        now_s[0] += 1.5

    monkeypatch.setattr(duration_store, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(duration_store, "save_durations", save)
    monkeypatch.setattr(kept.store._closing, "wait", pause)
    kept.learn()
    kept.store._save_until_closed()
    assert pauses_s == [2.0, 150.0, 2.0]


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(duration_store, "_LAST_SAVE_S", 0.0)
    monkeypatch.setattr(duration_store, "save_durations", lambda *_: go_on.wait(30) and None)
    kept.learn()
    kept.store.close()
    assert warnings == [f"{kept.path}: tool durations were not saved: the disk takes too long"]
    go_on.set()


@pytest.mark.usefixtures("_in_no_time")
def test_the_tracker_s_first_step_and_its_end_reach_the_file(kept: Kept) -> None:
    tracked = Tracked(store=kept.store)
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.turn("b", [*known, 5], session="s")
    kept.learn()
    tracked.tracker.step()
    kept.await_saved(1)
    kept.learn()
    tracked.tracker.close()
    assert kept.saved() == 2


def test_a_new_engine_starts_with_what_others_know(tmp_path: Path) -> None:
    first = Kept(tmp_path / "durations.json")
    first.learn(5.0)
    first.store.close()
    second = Kept(tmp_path / "durations.json.1")
    assert second.durations.history(TOOL).tool_mean_s == 5.0
    # It does not pass on what it has from others.
    second.learn(7.0)
    second.store.close()
    assert second.saved() == 1
    assert Kept(tmp_path / "durations.json.2").durations.history(TOOL).tool_mean_s == 6.0


@pytest.mark.usefixtures("_in_no_time")
def test_engines_side_by_side_learn_from_each_other(tmp_path: Path) -> None:
    one, other = Kept(tmp_path / "durations.json"), Kept(tmp_path / "durations.json.1")
    for engine in (one, other):
        engine.store.step()
    one.learn(5.0)
    deadline_s = time.monotonic() + 30
    while other.durations.history(TOOL).tool_count != 1:
        assert time.monotonic() < deadline_s, "nothing is shared"
        time.sleep(0.001)
    for engine in (one, other):
        engine.store.close()
    assert (one.durations.history(TOOL).tool_count, other.saved()) == (1, 0)


def test_another_engine_s_damaged_file_is_left_alone(tmp_path: Path, vllm_log: pytest.LogCaptureFixture) -> None:
    damaged = tmp_path / "durations.json.1"
    damaged.write_text('{"format": "agentcache durations", "version":')
    assert Kept(tmp_path / "durations.json").durations.history(TOOL).tool_count == 0
    assert damaged.exists()
    assert vllm_log.records == []
