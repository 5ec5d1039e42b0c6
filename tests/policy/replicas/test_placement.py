from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.price import RecomputeCost
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.engine_load import EngineLoad, PrefillCost
from agentcache.policy.replicas.placement import Placed, Placement, SpillRule

BLOCK = 4
# A second a block, wherever it is.
COST = PrefillCost(RecomputeCost(slope_s=0.0, base_s=1.0, floor_s=1e-9), BLOCK)
SYSTEM = [1] * 16


class Front:
    """Prompts of whole blocks, and replies of one."""

    def __init__(self, engines: int = 2, capacity: int = 400, extra_jobs: float = 0.5, **rule: float) -> None:
        self.placement = Placement(
            engines,
            capacity_tokens=capacity,
            prefill_cost=COST,
            extra_jobs=extra_jobs,
            spill=SpillRule(**rule),
        )
        self.now_s = 0.0
        self.prompts: dict[str, list[int]] = {}

    def ask(self, request: str, prompt: list[int], job: str | None = None) -> Placed:
        self.prompts[request] = prompt
        return self.placement.place(request, Chain(prompt, BLOCK), self.now_s, job=job)

    def answer(self, request: str, *, answered: bool = False) -> list[int]:
        """The request's prompt with its reply, `answered` if that calls no tool."""
        reply = [100 + len(self.prompts)] * BLOCK
        self.placement.got_token(request)
        self.placement.finished(request, reply, self.now_s, answered=answered)
        return self.prompts[request] + reply

    def turn(self, request: str, prompt: list[int], job: str | None = None, *, answered: bool = False) -> Placed:
        placed = self.ask(request, prompt, job)
        self.prompts[request] = self.answer(request, answered=answered)
        return placed

    def crowd(self, engine: int, blocks: int) -> None:
        """Have a request for so many blocks wait there."""
        self.placement.loads[engine].queue(f"crowd of {engine}", float(blocks))


def test_a_job_stays_where_it_began() -> None:
    front = Front()
    first = front.turn("1", [2] * 40, "job")
    # Others make that engine the busier one.
    front.crowd(first.engine, blocks=5)
    again = front.turn("2", front.prompts["1"] + [3] * 8, "job")
    assert (again.engine, again.reason, again.moved_from) == (first.engine, "home", None)


def test_a_job_without_a_name_is_known_by_its_prompt() -> None:
    front = Front()
    first = front.turn("1", [2] * 40)
    front.crowd(first.engine, blocks=5)
    again = front.turn("2", front.prompts["1"] + [3] * 8)
    assert (again.engine, again.job, again.reason) == (first.engine, "1", "home")


def test_a_shared_system_prompt_makes_nobody_a_job() -> None:
    front = Front()
    front.turn("1", [*SYSTEM, *[2] * 8])
    assert front.turn("2", [*SYSTEM, *[3] * 8]).job == "2"


def test_the_system_prompt_breaks_ties_of_engines() -> None:
    front = Front()
    front.crowd(0, blocks=100)
    assert front.turn("1", [*SYSTEM, *[2] * 8], "one", answered=True).engine == 1
    front.placement.got_token("crowd of 0")
    assert front.turn("2", [*SYSTEM, *[3] * 8], "two").engine == 1


def test_a_shared_system_prompt_does_not_collect_the_jobs() -> None:
    """Weighed by seconds they all went to the engine that has it: their own prompts are short."""
    front = Front(engines=16, capacity=10_000)
    engines = [front.turn(str(job), [*SYSTEM, *[job + 2] * BLOCK], f"job {job}").engine for job in range(64)]
    assert [engines.count(engine) for engine in range(16)] == [4] * 16


@pytest.mark.parametrize(("extra_jobs", "engines"), [(0.0, [0, 1, 1, 0]), (1.0, [0, 1, 1, 1])])
def test_jobs_that_share_a_prompt_share_an_engine(extra_jobs: float, engines: list[int]) -> None:
    """As far as that has not many more jobs than another, which would compute and keep the shared prompt as well."""
    front = Front(capacity=10_000, extra_jobs=extra_jobs)
    shared = ([7] * 16, SYSTEM, SYSTEM, SYSTEM)
    prompts = [[*begins, *[job + 20] * BLOCK] for job, begins in enumerate(shared)]
    assert [front.turn(str(job), prompt, f"job {job}").engine for job, prompt in enumerate(prompts)] == engines


def test_of_engines_that_share_as_much_the_emptiest_gets_it() -> None:
    front = Front(capacity=10_000, extra_jobs=1.0)
    for job, engine in enumerate((0, 1, 0, 1, 0)):
        front.crowd(1 - engine, blocks=1000)
        assert front.turn(str(job), [job + 2] * 8, f"job {job}").engine == engine
        front.placement.got_token(f"crowd of {1 - engine}")
    front.crowd(1, blocks=1000)
    assert front.turn("5", [9] * 8, "job 5").engine == 1


def test_a_job_moves_once_when_home_costs_far_more() -> None:
    front = Front(factor=2.0)
    home = front.turn("1", [2] * 40, "job").engine
    front.crowd(home, blocks=100)
    moved = front.turn("2", front.prompts["1"], "job")
    assert (moved.engine, moved.moved_from, moved.reason) == (1 - home, home, "cheaper")
    front.crowd(moved.engine, blocks=1000)
    assert front.turn("3", front.prompts["2"], "job").reason == "home"


def test_a_job_does_not_move_for_less_than_the_factor() -> None:
    for factor, reason in ((2.0, "cheaper"), (20.0, "home")):
        front = Front(factor=factor)
        front.crowd(front.turn("1", [2] * 40, "job").engine, blocks=100)
        assert front.turn("2", front.prompts["1"], "job").reason == reason


def test_a_job_does_not_move_to_where_no_room_is() -> None:
    front = Front(factor=2.0)
    home = front.turn("1", [2] * 40, "job").engine
    front.placement.loads[1 - home].settle("another", 380)
    front.crowd(home, blocks=1000)
    assert front.turn("2", front.prompts["1"], "job").reason == "home"


def test_a_job_with_a_turn_under_way_does_not_move() -> None:
    front = Front(factor=1.0)
    home = front.ask("1", [2] * 40, "job").engine
    front.crowd(home, blocks=1000)
    assert front.ask("2", [2] * 60, "job").engine == home


def test_idle_jobs_make_room_and_keep_their_homes() -> None:
    front = Front(live_s=60.0)
    home = front.turn("1", [2] * 40, "job").engine
    front.now_s = 61.0
    front.turn("2", [3] * 8, "another")
    assert front.placement.loads[home].live_tokens in (0, 12)
    assert front.turn("3", front.prompts["1"], "job").engine == home


def test_a_job_with_a_final_answer_makes_room_and_keeps_its_home() -> None:
    front = Front()
    home = front.turn("1", [2] * 40, "job").engine
    front.turn("2", front.prompts["1"], "job", answered=True)
    assert front.placement.loads[home].live_tokens == 0
    front.crowd(home, blocks=5)
    assert front.turn("3", front.prompts["2"], "job").engine == home
    assert front.placement.loads[home].live_tokens == len(front.prompts["3"])


def test_where_jobs_go_on_after_answers_they_count() -> None:
    """As where a human writes again, or calls are not read."""
    front = Front()
    home = front.turn("1", [2] * 40, "job", answered=True).engine
    for turn in range(2, 5):
        front.turn(str(turn), front.prompts[str(turn - 1)], "job", answered=True)
    assert front.placement.loads[home].live_tokens == len(front.prompts["4"])


def test_an_answer_beside_other_turns_ends_nothing() -> None:
    front = Front()
    home = front.ask("main", [2] * 40, "job").engine
    front.turn("sub", [3] * 40, "job", answered=True)
    assert front.placement.loads[home].live_tokens > 0


def test_a_job_that_is_over_begins_anew() -> None:
    front = Front()
    front.turn("1", [2] * 40, "job")
    assert front.placement.end_job("job")
    assert not front.placement.end_job("job")
    assert front.turn("2", [2] * 40, "job").reason == "new"


def test_only_the_latest_jobs_are_remembered() -> None:
    placement = Placement(2, capacity_tokens=400, prefill_cost=COST, max_jobs=3)
    for number in range(10):
        placement.place(str(number), Chain([number] * 8, BLOCK), 0.0, job=f"job {number}")
        placement.finished(str(number), [1] * 4, 0.0)
    assert [placement.find(f"job {number}") is not None for number in range(10)] == [False] * 7 + [True] * 3


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "token", "end", "answer", "over"]), st.integers(0, 5)),
    max_size=60,
)


@given(STEPS)
def test_no_load_is_left_when_all_is_over(steps: list[tuple[str, int]]) -> None:
    front = Front(engines=3, capacity=100, factor=1.0, live_s=5.0)
    opened: list[str] = []
    for number, (what, which) in enumerate(steps):
        front.now_s += which / 2
        if what == "ask":
            front.ask(str(number), [which] * (8 + number), f"job {which}" if which % 2 else None)
            opened.append(str(number))
        elif what == "token" and opened:
            front.placement.got_token(opened[which % len(opened)])
        elif what in ("end", "answer") and opened:
            front.answer(opened.pop(which % len(opened)), answered=what == "answer")
        elif what == "over":
            front.placement.end_job(f"job {which}")
    for request in opened:
        front.answer(request)
    front.now_s += 100.0
    front.turn("last", [9] * 4, "last")
    loads: list[EngineLoad] = front.placement.loads
    assert sorted(load.live_tokens for load in loads) == [0, 0, 8]
    assert [load.queued_s for load in loads] == [0.0] * 3


BEGINNINGS = st.lists(
    st.tuples(st.sampled_from(["begins", "begins", "begins", "answered", "over"]), st.integers(0, 40), st.booleans()),
    max_size=60,
)


@given(st.integers(1, 9), st.sampled_from([0.0, 0.5, 2.0]), BEGINNINGS)
def test_a_new_job_goes_to_an_engine_with_few_jobs(
    engines: int, extra_jobs: float, steps: list[tuple[str, int, bool]]
) -> None:
    """Whatever prompt it has, shares, and finds waiting; counted here from what became of each job."""
    front = Front(engines=engines, capacity=10_000, extra_jobs=extra_jobs)
    living: dict[str, int] = {}
    for number, (what, size, waits) in enumerate(steps):
        job = f"job {number}"
        if what == "begins":
            counts = [list(living.values()).count(engine) for engine in range(engines)]
            living[job] = front.ask(job, [*SYSTEM, *[number + 2] * size], job).engine
            assert counts[living[job]] <= (1 + extra_jobs) * min(counts)
            if not waits:
                front.answer(job)
        elif living:
            over = list(living)[size % len(living)]
            if what == "answered":
                # Its latest turn, if that waits, is over as well.
                front.answer(over)
                front.turn(f"{over} at {number}", front.prompts[over], over, answered=True)
            else:
                front.placement.end_job(over)
            del living[over]
    assert [load.jobs for load in front.placement.loads] == [
        list(living.values()).count(engine) for engine in range(engines)
    ]
