"""The guard of what only explains: an error turns it off, is told once, and goes no further."""

from __future__ import annotations

import os

import pytest
from vllm import SamplingParams
from vllm.v1.request import Request

from agentcache.engine.parts import RAISE, Hooks, Observers, Part


class Counting:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def note(self, value: int) -> int:
        self.seen.append(value)
        return 100 // value


def test_an_observer_answers_until_it_fails(
    monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE)
    observers, one, other = Observers(), Counting(), Counting()
    guard, healthy = observers.guard("counting", one.seen.clear), observers.guard("healthy")
    assert [guard.ask(-1, one.note, value) for value in (50, 0, 25)] == [2, -1, -1]
    assert one.seen == [], "what it knows is dropped, and it is told nothing more"
    guard.tell(one.note, value=1)
    healthy.tell(other.note, 4)
    assert (one.seen, other.seen) == ([], [4])
    assert observers.failures == {"counting": 1, "healthy": 0}
    (record,) = (record for record in vllm_log.records if "counting failed" in record.getMessage())
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_an_observer_that_cannot_be_emptied_is_off_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE)
    observers, one = Observers(), Counting()
    guard = observers.guard("counting", lambda: one.note(0))
    assert [guard.ask(-1, one.note, value) for value in (0, 4)] == [-1, -1]
    assert observers.failures == {"counting": 1}


def test_in_tests_an_observers_error_is_an_error() -> None:
    assert os.environ.get(RAISE), "tests/conftest.py sets it, for engines in other processes too"
    observers, one = Observers(), Counting()
    with pytest.raises(ZeroDivisionError):
        observers.guard("counting").tell(one.note, 0)
    assert observers.failures == {"counting": 0}


def test_what_ends_an_engine_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Observers().guard("counting").tell(interrupt)


class Broken(Part):
    """Its hooks fail from the second request on."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def ended(self, request: Request) -> None:
        self.heard.append(request.request_id)
        if len(self.heard) > 1:
            raise ValueError("broken")

    def abandon(self) -> None:
        self.heard.append("abandoned")


def test_an_observer_hears_of_requests_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE)
    observers, broken = Observers(), Broken()
    observers.watch("broken", broken)
    assert observers.find(Broken) is broken
    hooks = Hooks([observers])
    assert (len(hooks.ended), hooks.reset) == (1, ())
    for name in "abc":
        hooks.ended[0](Request(name, [1], SamplingParams(), None))
    assert broken.heard == ["a", "b", "abandoned"]
    assert observers.find(Broken) is None
    assert observers.failures == {"broken": 1}
