import json
import random
from pathlib import Path

import pytest

from tool_runtime.durations import Durations, Ended
from tool_runtime.durations_file import load_durations, save_durations
from tool_runtime.tool_key import HUMAN, ToolKey

BASH = ToolKey("bash")
MAKE = ToolKey("bash", "make")
LS = ToolKey("bash", "ls")


def learned(key: ToolKey, *seconds: float) -> Durations:
    durations = Durations()
    for each in seconds:
        durations.observe(key, each, Ended.RETURNED, 0.0)
    return durations


def random_durations() -> Durations:
    chance = random.Random(7)
    durations = Durations(half_life_s=500.0)
    for now_s in range(1000):
        key = chance.choice([HUMAN, BASH, MAKE, LS, ToolKey("\ud800"), ToolKey("read")])
        ended = chance.choice(list(Ended))
        durations.observe(key, chance.lognormvariate(1, 2), ended, now_s)
    return durations


def told(durations: Durations, key: ToolKey) -> tuple[float, ...]:
    history = durations.history(key)
    chances = (history.curve.survival(t_s) for t_s in (0.01, 0.1, 1, 10, 100))
    return (*chances, history.evidence, history.tool_count, history.total_count)


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    durations, path = random_durations(), tmp_path / "durations.json"
    assert save_durations(durations.dump(), path) is None
    states, warning = load_durations(path)
    assert warning is None
    restored = Durations(half_life_s=500.0)
    restored.restore(states, now_s=-12345.0)
    for key in (HUMAN, BASH, MAKE, LS, ToolKey("new")):
        assert told(restored, key) == pytest.approx(told(durations, key))
        assert restored.history(key).tool_samples_s.tolist() == durations.history(key).tool_samples_s.tolist()
    assert [state.key for state in restored.dump()] == [state.key for state in states]
    assert list(tmp_path.iterdir()) == [path]


def test_a_copy_stays_as_it_was_when_more_is_learned() -> None:
    durations = random_durations()
    before = durations.dump()
    copy = durations.copy()
    assert copy.dump() == before
    for key in (HUMAN, MAKE, LS, ToolKey("new")):
        durations.observe(key, 7.0, Ended.RETURNED, 2000.0)
    assert copy.dump() == before
    assert durations.dump() != before
    assert durations.observed == copy.observed + 4


def test_what_broke_or_was_restored_is_nothing_new() -> None:
    durations = Durations()
    durations.restore(learned(MAKE, 1.0, 2.0).dump(), now_s=0.0)
    durations.observe(MAKE, 1.0, Ended.BROKEN, 0.0)
    assert durations.observed == 0
    durations.observe(MAKE, 1.0, Ended.STILL_OUT, 0.0)
    assert durations.observed == 1


def test_records_that_do_not_fit_keep_the_latest_samples() -> None:
    restored = Durations(max_keys=2, max_samples=3)
    restored.restore(learned(MAKE, *map(float, range(1, 50))).dump(), now_s=0.0)
    assert restored.history(MAKE).tool_samples_s.tolist() == [47.0, 48.0, 49.0]
    assert restored.history(MAKE).tool_count == 49


def test_a_missing_file_is_a_fresh_start(tmp_path: Path) -> None:
    assert load_durations(tmp_path / "none.json") == ([], None)


def good_file() -> dict[str, object]:
    record = {"tool": "bash", "command": "", "count": 1, "total_s": 1.0, "samples": [[1.0, 0.0, True]]}
    return {"format": "agentcache durations", "version": 1, "records": [record]}


def broken_record(**changes: object) -> str:
    content = good_file()
    content["records"] = [{**content["records"][0], **changes}]  # type: ignore[index]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "JSON"),
        ("\x00\xff", "JSON"),
        (json.dumps(good_file())[:-9], "JSON"),
        ("[]", "object"),
        ("{}", "records"),
        (json.dumps({**good_file(), "version": 2}), "version"),
        (json.dumps({**good_file(), "format": "other"}), "format"),
        (broken_record(count=-1), "count"),
        (broken_record(total_s=float("nan")), "total_s"),
        (broken_record(samples=[[-1.0, 0.0, True]]), "samples"),
        (broken_record(samples=[[1.0, 0.0]]), "samples"),
        (broken_record(tool="x" * 1000), "tool"),
        (broken_record(surprise=1), "surprise"),
    ],
)
def test_a_damaged_or_foreign_file_is_moved_aside(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "durations.json"
    path.write_text(content, encoding="latin-1")
    states, warning = load_durations(path)
    assert states == []
    assert warning is not None
    assert str(path) in warning
    assert reason in warning
    assert "\n" not in warning
    assert not path.exists()
    assert (tmp_path / "durations.json.damaged").read_text(encoding="latin-1") == content


def test_the_file_that_the_damages_are_made_from_is_good(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    path.write_text(json.dumps(good_file()))
    states, warning = load_durations(path)
    assert warning is None
    assert len(states) == 1


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tool_runtime.durations_file.MAX_FILE_BYTES", 100)
    path = tmp_path / "durations.json"
    path.write_text(json.dumps(good_file()) + " " * 100)
    assert load_durations(path)[0] == []
    assert not path.exists()


def test_disks_that_fail_give_a_line_and_leave_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = load_durations(tmp_path)[1]
    assert warning is not None
    assert "cannot be read" in warning
    warning = save_durations([], tmp_path / "missing" / "durations.json")
    assert warning is not None
    assert "not saved" in warning

    path = tmp_path / "durations.json"
    save_durations(learned(BASH, 1.0).dump(), path)
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    warning = save_durations([], path)
    assert warning is not None
    assert "No space left" in warning
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
