import json
import math
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.continuum import ContinuumCode, ContinuumPaper
from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.durations_file import ForeignFileError, check_file, load_durations, save_durations
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import HUMAN, ToolKey
from tool_runtime.learning.ttl import HazardTtl

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
        (json.dumps(good_file())[:-9], "JSON"),
        (json.dumps({"format": "agentcache durations"}), "records"),
        (json.dumps({**good_file(), "version": 2}), "version"),
        (broken_record(count=-1), "count"),
        (broken_record(count=10**400), "count"),
        (broken_record(total_s=1e300), "total_s"),
        (broken_record(total_s=float("nan")), "total_s"),
        (broken_record(samples=[[-1.0, 0.0, True]]), "samples"),
        (broken_record(samples=[[1.0, 0.0]]), "samples"),
        (broken_record(tool="x" * 1000), "tool"),
        (broken_record(surprise=1), "surprise"),
        (json.dumps(good_file(), indent=2)[:-9], "JSON"),
    ],
)
def test_a_damaged_file_is_moved_aside(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "durations.json"
    path.write_text(content)
    check_file(path)
    states, warning = load_durations(path)
    assert states == []
    assert warning is not None
    assert str(path) in warning
    assert reason in warning
    assert "\n" not in warning
    assert not path.exists()
    assert (tmp_path / "durations.json.damaged").read_text() == content


def test_no_damaged_file_takes_another_s_place(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    contents = [broken_record(count=-number) for number in (1, 2, 3)]
    for content in contents:
        path.write_text(content)
        load_durations(path)
    names = ["durations.json.damaged", "durations.json.damaged.2", "durations.json.damaged.3"]
    assert [(tmp_path / name).read_text() for name in names] == contents


@pytest.mark.parametrize(
    "content",
    [
        b"\n",
        b"\x00\xff",
        b"[]",
        b"{}",
        b"user: root",
        json.dumps({**good_file(), "format": "other"}).encode(),
        b'{"records": [], "format": "agentcache durations"}',
    ],
)
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "theirs"
    path.write_bytes(content)
    for read in (check_file, load_durations):
        with pytest.raises(ForeignFileError, match="is not a file of tool durations") as caught:
            read(path)
        assert str(caught.value).startswith(str(path))
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device node")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_device])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "special"
    make(path)
    kind = path.stat().st_mode
    for read in (check_file, load_durations):
        with pytest.raises(ForeignFileError, match="is not a regular file"):
            read(path)
    assert path.stat().st_mode == kind
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ForeignFileError, match=r"file/durations.json cannot be read \(Not a directory\)"):
        check_file(tmp_path / "file" / "durations.json")


def test_an_empty_file_is_a_fresh_start(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    path.touch()
    assert load_durations(path) == ([], None)
    assert save_durations([], path) is None


def test_the_file_that_the_damages_are_made_from_is_good(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    path.write_text(json.dumps(good_file()))
    states, warning = load_durations(path)
    assert warning is None
    assert len(states) == 1


extremes = st.sampled_from(
    [0, 1, 0.001, 5e-324, 1e9, 2**53, 2**53 + 1, 1e300, 1.7e308, 10**400, -1, -0.0, math.inf, math.nan]
)
anything = st.one_of(extremes, st.floats(), st.integers(), st.none(), st.booleans(), st.text(max_size=3))
amounts = st.one_of(extremes, st.floats(0, 1e308), st.integers(0, 10**20))
numbers = st.one_of(amounts, amounts, amounts, anything)
stored_records = st.fixed_dictionaries(
    {
        "tool": st.sampled_from(["bash", "", "*" * 65, "other"]),
        "command": st.sampled_from(["", "make"]),
        "count": st.one_of(st.just(2**53), st.just(1), numbers),
        "total_s": st.one_of(st.just(2.0**53), st.just(1.0), numbers),
        "samples": st.lists(st.tuples(numbers, numbers, st.booleans()), max_size=4),
    }
)
contents = st.one_of(
    st.binary(max_size=50).map(lambda rest: b'{"format":"agentcache durations"' + rest),
    st.lists(stored_records, max_size=4).map(lambda records: json.dumps({**good_file(), "records": records}).encode()),
)


@given(contents)
def test_whatever_the_file_holds_serving_goes_on(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any durations.json"
    path.write_bytes(content)
    durations = Durations()
    durations.restore(load_durations(path)[0], now_s=50.0)
    runtimes = [
        AgentRuntime(clock=lambda: 50.0, estimator=estimator, durations=durations)
        for estimator in (HazardTtl(), ContinuumPaper(), ContinuumCode())
    ]
    for turn, (key, seconds) in enumerate(((MAKE, 3.0), (HUMAN, 1e300), (BASH, 1.7e308), (BASH, 1.7e308))):
        durations.observe(key, seconds, Ended.RETURNED, 50.0 + turn)
        for each in runtimes:
            hold = each.decide_hold(key, age_s=0.5, loss_s=1.0, prefill_s=1.0, share=0.1, queued=True)
            assert 0 <= hold.ttl_s < math.inf
            assert 0 <= hold.value_s < math.inf
        assert 0 < runtimes[0].correction_factor(key, 10.0, 0.5) < math.inf
    assert save_durations(durations.dump(), path) is None
    states, warning = load_durations(path)
    assert warning is None, "what was saved can be read"
    assert len(states) >= 4


def test_records_that_add_up_to_too_much_are_saved_and_read(tmp_path: Path) -> None:
    content, path = good_file(), tmp_path / "durations.json"
    content["records"] = [{**content["records"][0], "count": 2**53, "total_s": 2.0**53}] * 2  # type: ignore[index]
    path.write_text(json.dumps(content))
    durations = Durations()
    durations.restore(load_durations(path)[0], now_s=0.0)
    durations.observe(BASH, 1.0, Ended.RETURNED, 0.0)
    assert save_durations(durations.dump(), path) is None
    assert load_durations(path)[1] is None
    assert durations.history(BASH).tool_mean_s == 1.0


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tool_runtime.learning.durations_file.MAX_FILE_BYTES", 100)
    path = tmp_path / "durations.json"
    path.write_text(json.dumps(good_file()) + " " * 100)
    assert load_durations(path)[0] == []
    assert not path.exists()


def test_disks_that_fail_give_a_line_and_leave_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
