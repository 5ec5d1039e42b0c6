import itertools

import pytest
from hand_clock import Clock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sizes import pick_size

from tool_runtime.learning.job_blocks import MOST_AWAY_S
from tool_runtime.learning.job_entry import Departed, Departure, Gap
from tool_runtime.learning.job_table import MAX_EXPIRED, MAX_PENDING, JobTable, Parent, bounded_id
from tool_runtime.learning.tool_key import HUMAN, ToolKey

BASH = ToolKey("bash")
READ = ToolKey("read")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> JobTable:
    return JobTable(clock=clock, max_jobs=3, max_idle_s=60.0)


def told(gap: Gap | None) -> tuple[ToolKey, float, bool] | None:
    return None if gap is None else (gap.turn.key, round(gap.seconds, 6), gap.certain)


def test_a_job_from_its_first_request_to_its_end(table: JobTable, clock: Clock) -> None:
    assert table.begin("s", "r1") is None
    clock.now_s += 2
    turn = table.finish("s", "r1", [BASH])
    assert turn is not None
    assert (turn.key, turn.finished_s) == (BASH, 1002.0)
    clock.now_s += 5
    assert told(table.begin("s", "r2")) == (BASH, 5.0, True)
    table.finish("s", "r2")
    clock.now_s += 7
    assert told(table.begin("s", "r3")) == (HUMAN, 7.0, True)
    entry = table.get("s")
    assert entry is not None
    assert (entry.arrival_s, entry.last_active_s, entry.turns, entry.calls) == (1000.0, 1014.0, 2, 1)
    assert table.end("s")
    assert table.get("s") is entry
    assert table.finish("s", "r3", [BASH]) is None
    assert table.get("s") is None
    assert table.expire() == [Departed(entry, Departure.ENDED, ())]
    assert table.expire() == []
    assert entry.turns == 3


def test_ending_an_idle_job_takes_effect_at_once(table: JobTable) -> None:
    assert not table.end("s")
    table.begin("s", "r1")
    table.finish("s", "r1")
    assert table.end("s")
    assert len(table) == 0


def test_a_job_that_speaks_again_before_it_is_over_goes_on(table: JobTable) -> None:
    table.begin("s", "r1")
    table.end("s")
    table.begin("s", "r2")
    table.finish("s", "r1")
    assert table.finish("s", "r2", [BASH]) is not None
    assert table.get("s") is not None


def test_sub_agents_are_told_apart_by_the_turn_they_continue(table: JobTable, clock: Clock) -> None:
    table.begin("s", "main")
    table.finish("s", "main", [ToolKey("task")])
    clock.now_s += 1
    assert table.begin("s", "sub", Parent.NONE) is None
    table.finish("s", "sub", [BASH])
    clock.now_s += 2
    assert told(table.begin("s", "sub2", "sub")) == (BASH, 2.0, True)
    clock.now_s += 4
    assert told(table.begin("s", "main2", "main")) == (ToolKey("task"), 7.0, True)
    entry = table.get("s")
    assert entry is not None
    assert list(entry.running) == ["sub2", "main2"]
    assert not entry.pending


def test_a_gap_that_may_be_anothers_is_not_certain(table: JobTable, clock: Clock) -> None:
    for request, call in (("a", BASH), ("b", READ)):
        table.begin("s", request, Parent.NONE)
        table.finish("s", request, [call])
    clock.now_s += 3
    assert told(table.begin("s", "c")) == (BASH, 3.0, False)
    assert told(table.begin("s", "d")) == (READ, 3.0, False)
    assert table.begin("s", "e") is None


def test_an_unknown_parent_continues_nothing(table: JobTable) -> None:
    table.begin("s", "a")
    table.finish("s", "a", [BASH])
    assert table.begin("s", "b", "forgotten") is None
    entry = table.get("s")
    assert entry is not None
    assert list(entry.pending) == ["a"]


def test_a_failed_request_leaves_nothing_to_wait_for(table: JobTable) -> None:
    table.begin("s", "a")
    table.fail("s", "a")
    assert table.begin("s", "b") is None
    entry = table.get("s")
    assert entry is not None
    assert (entry.turns, entry.failures) == (0, 1)


def test_calls_that_make_no_sense_change_nothing(table: JobTable) -> None:
    table.begin("s", "a")
    assert table.begin("s", "a") is None
    assert table.finish("s", "b") is None
    assert table.finish("t", "a") is None
    table.fail("t", "a")
    assert table.finish("s", "a") is not None
    assert table.finish("s", "a") is None
    entry = table.get("s")
    assert entry is not None
    assert (entry.turns, len(table)) == (1, 1)


def test_a_client_that_vanishes_costs_an_entry_until_it_expires(table: JobTable, clock: Clock) -> None:
    table.begin("gone", "a")
    table.finish("gone", "a", [BASH])
    table.begin("busy", "b")
    clock.now_s += 60
    assert table.expire() == []
    clock.now_s += 0.1
    (departed,) = table.expire()
    assert (departed.job.session, departed.cause) == ("gone", Departure.IDLE)
    assert [told(gap) for gap in departed.unanswered] == [(BASH, 60.1, True)]
    assert [job.session for job in table.jobs] == ["busy"]


def test_many_jobs_that_expire_at_once_leave_in_parts(clock: Clock) -> None:
    table = JobTable(clock=clock, max_jobs=2 * MAX_EXPIRED)
    for number in range(MAX_EXPIRED + 20):
        table.begin(str(number), "a")
        table.finish(str(number), "a", [BASH], prompt_tokens=1)
    clock.now_s += 4000
    assert [each.job.session for each in table.expire()] == [str(number) for number in range(MAX_EXPIRED)]
    table.begin(str(MAX_EXPIRED), "b")
    assert len(table.expire()) == 19
    assert [entry.session for entry in table.jobs] == [str(MAX_EXPIRED)]
    table.check_integrity()


def test_a_job_that_was_idle_for_too_long_leaves_before_its_turn(clock: Clock) -> None:
    table = JobTable(clock=clock, max_jobs=2 * MAX_EXPIRED)
    for number in range(MAX_EXPIRED + 20):
        table.begin(str(number), "a")
        table.finish(str(number), "a", [BASH], prompt_tokens=1)
    assert not table.drop_overdue(str(MAX_EXPIRED + 5))
    clock.now_s += 4000
    assert table.drop_overdue(str(MAX_EXPIRED + 5))
    assert table.begin(str(MAX_EXPIRED + 5), "b") is None
    table.check_integrity()
    assert len(table.expire()) == MAX_EXPIRED + 1
    table.check_integrity()


def test_a_tool_that_runs_for_too_long_is_not_waited_for(clock: Clock) -> None:
    """Its client has more likely gone; should the job come back, it counts again, and its blocks from its next end."""
    table = JobTable(clock=clock)
    for session in ("gone", "busy"):
        table.begin(session, "a")
        table.finish(session, "a", [BASH], prompt=[b"shared", session.encode()])
        clock.now_s += 1
    table.begin("busy", "b")
    clock.now_s += MOST_AWAY_S - 2
    table.expire()
    assert len(table.turn_counts.blocks) == 3
    clock.now_s += 0.1
    table.expire()
    table.check_integrity()
    assert (len(table.turn_counts), len(table.turn_counts.blocks)) == (1, 2)
    table.begin("gone", "b")
    table.check_integrity()
    assert len(table.turn_counts) == 2
    table.finish("gone", "b", [BASH], prompt=[b"shared", b"gone", b"more"])
    table.check_integrity()
    assert len(table.turn_counts.blocks) == 4


def test_each_agent_of_a_job_counts_with_its_prompt(table: JobTable) -> None:
    blocks = table.turn_counts.blocks
    for request, prompt in (("main 1", [b"a", b"b"]), ("child 1", [b"a", b"c", b"d"])):
        table.begin("job", request, Parent.NONE)
        table.finish("job", request, [BASH], prompt=prompt)
    assert len(blocks) == 4
    table.begin("job", "child 2", "child 1")
    assert len(blocks) == 4
    table.finish("job", "child 2", [BASH], prompt=[b"a", b"c", b"d", b"e"])
    assert len(blocks) == 5
    # Its client gives up: the child comes to nothing, and nothing goes on from its turn.
    table.begin("job", "child 3", "child 2")
    table.fail("job", "child 3")
    assert len(blocks) == 2
    table.check_integrity()


def test_a_full_table_drops_the_longest_idle(table: JobTable, clock: Clock) -> None:
    for session in "abc":
        clock.now_s += 1
        table.begin(session, "r")
        table.finish(session, "r")
    table.begin("a", "r2")
    table.begin("d", "r")
    assert [entry.session for entry in table.jobs] == ["a", "d", "c"]
    assert [(departed.job.session, departed.cause) for departed in table.expire()] == [("b", Departure.CAPACITY)]


def test_running_jobs_stay_even_beyond_the_bound(table: JobTable) -> None:
    for session in "abcde":
        table.begin(session, "r")
    assert len(table) == 5
    for session in "abcde":
        table.finish(session, "r")
    assert len(table) == 3
    table.check_integrity()


def test_100_000_sessions_with_long_ids(clock: Clock) -> None:
    table = JobTable(clock=clock, max_jobs=1000)
    for number in range(100_000):
        session = f"{number}"
        table.begin(session, "r")
        table.finish(session, "r", [BASH])
    assert len(table) == 1000
    assert len(table.expire()) == 1000
    long_id = "x" * 10_000_000
    table.begin(long_id, long_id)
    assert table.finish(long_id, long_id) is not None
    entry = table.get(long_id)
    assert entry is not None
    assert len(entry.session) < 80
    assert table.get(long_id + "x") is None
    table.check_integrity()


def test_a_digest_is_nobodys_own_id() -> None:
    digest = bounded_id("x" * 65)
    assert len(digest) > 64
    assert bounded_id(digest) != digest
    assert bounded_id("\ud800" * 100) != digest


def test_pending_turns_of_a_job_are_bounded(table: JobTable) -> None:
    for number in range(100):
        table.begin("s", f"{number}", Parent.NONE)
        table.finish("s", f"{number}", [BASH])
    entry = table.get("s")
    assert entry is not None
    assert list(entry.pending) == [f"{number}" for number in range(100 - MAX_PENDING, 100)]


def test_a_clock_that_jumps_back_trains_and_stops_nothing(table: JobTable, clock: Clock) -> None:
    table.begin("s", "a")
    table.finish("s", "a", [BASH])
    clock.now_s -= 500
    assert told(table.begin("s", "b")) == (BASH, 0.0, False)
    table.finish("s", "b", [BASH])
    clock.now_s += 4
    assert told(table.begin("s", "c")) == (BASH, 4.0, True)
    table.finish("s", "c")
    clock.now_s -= 1
    table.expire()
    clock.now_s += 61
    (departed,) = table.expire()
    assert departed.cause is Departure.IDLE
    assert [told(gap) for gap in departed.unanswered] == [(HUMAN, 61.0, False)]


@pytest.mark.parametrize("bounds", [{"max_jobs": 0}, {"max_idle_s": 0.0}, {"max_idle_s": float("nan")}])
def test_bounds_must_make_sense(clock: Clock, bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bounds))):
        JobTable(clock=clock, **bounds)  # type: ignore[arg-type]


def test_integrity_is_really_checked(table: JobTable) -> None:
    table.begin("s", "a")
    entry = table.get("s")
    assert entry is not None
    entry.running.clear()
    with pytest.raises(RuntimeError, match="filed wrongly"):
        table.check_integrity()


class JobTableMachine(RuleBasedStateMachine):
    """Random sessions, requests and clock jumps: gaps are never negative, what runs is never lost, and all departs."""

    sessions = st.sampled_from(["a", "b", "c", "d", "e"])

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.table = JobTable(clock=self.clock, max_jobs=3, max_idle_s=10.0)
        self.running: dict[str, str] = {}
        self.names = map(str, itertools.count())

    @rule(session=sessions, parent=st.sampled_from([*Parent, "0", "1", "2"]))
    def begin(self, session: str, parent: str | Parent) -> None:
        request = next(self.names)
        gap = self.table.begin(session, request, parent)
        self.running[request] = session
        assert gap is None or gap.seconds >= 0

    @rule(data=st.data(), calls=st.lists(st.sampled_from([BASH, READ]), max_size=2), fails=st.booleans())
    def stop(self, data: st.DataObject, calls: list[ToolKey], fails: bool) -> None:
        if not self.running:
            return
        request = data.draw(st.sampled_from(sorted(self.running)))
        session = self.running.pop(request)
        if fails:
            self.table.fail(session, request)
        else:
            self.table.finish(session, request, calls)

    @rule(session=sessions)
    def end(self, session: str) -> None:
        self.table.end(session)
        assert (self.table.get(session) is None) == (session not in self.running.values())

    @rule(seconds=st.floats(-100, 100))
    def move_clock(self, seconds: float) -> None:
        self.clock.now_s += seconds
        for departed in self.table.expire():
            assert not departed.job.running
            assert all(gap.seconds >= 0 for gap in departed.unanswered)

    @invariant()
    def is_sound(self) -> None:
        self.table.check_integrity()
        running = {request: job.session for job in self.table.jobs for request in job.running}
        assert running == self.running


TestJobTableMachine = JobTableMachine.TestCase
TestJobTableMachine.settings = settings(max_examples=pick_size(20, 60), stateful_step_count=40)
