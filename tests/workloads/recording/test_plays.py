from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.agent.job import Context, Job, Start, ToolResult, Turn
from workloads.recording.plays import SessionPlays, find_shared_blocks

BLOCK = 16


def make_session(name: str, turns: int, first_block: int) -> Job:
    """A session that grows by a block a turn, behind block 0, which all sessions have."""
    return Job(
        name,
        (),
        turns=tuple(
            Turn(
                pause_s=3.0,
                context=Context((0, *range(first_block, first_block + turn + 1)), BLOCK, (turn + 2) * BLOCK, 7),
            )
            for turn in range(turns)
        ),
    )


SESSIONS = [make_session(f"session-{number}", 8 + number, 1 + 100 * number) for number in range(5)]


def blocks(job: Job) -> set[int]:
    return {block for turn in job.turns if turn.context for block in turn.context.blocks}


@given(st.integers(0, 3), st.integers(0, 2**32))
def test_every_session_is_played_once_a_round(round_number: int, seed: int) -> None:
    plays = SessionPlays(SESSIONS, {0}, seed)
    played = [plays.play(round_number * len(SESSIONS) + place) for place in range(len(SESSIONS))]
    assert sorted(len(job.turns) for job in played) == [len(job.turns) for job in SESSIONS]
    assert len({job.id for job in played}) == len(SESSIONS)


@given(st.integers(0, 2**32))
def test_two_plays_share_nothing_but_the_heads(seed: int) -> None:
    plays = SessionPlays(SESSIONS, {0}, seed)
    played = [plays.play(number) for number in range(3 * len(SESSIONS))]
    assert len({job.id for job in played}) == len(played)
    for number, job in enumerate(played):
        assert all(blocks(job) & blocks(other) == {0} for other in played[:number])


def test_no_play_waits_for_when_its_session_came() -> None:
    late = [replace(session, arrival_s=100.0 * number) for number, session in enumerate(SESSIONS)]
    plays = SessionPlays(late, {0}, 5)
    for number in range(2 * len(late)):
        assert plays.play(number).arrival_s == plays.play_midway(number, 1).job.arrival_s == 0


def test_a_copy_plays_the_same_sessions_with_own_blocks() -> None:
    plays = SessionPlays(SESSIONS, {0}, 5)
    copy = plays.take_copy(2)
    for number in range(2 * len(SESSIONS)):
        one, other = plays.play(number), copy.play(number)
        assert len(one.turns) == len(other.turns)
        assert one.id != other.id
        assert blocks(one) & blocks(other) == {0}


def test_the_seed_gives_the_order_and_the_starts() -> None:
    def play(seed: int) -> list[str]:
        plays = SessionPlays(SESSIONS, {0}, seed)
        return [f"{plays.play(number).id} {plays.play_midway(number, 2)}" for number in range(10)]

    assert play(1) == play(1) != play(2)


@given(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2**32))
def test_a_midway_session_warms_up_and_then_goes_on(number: int, warm_up: int, seed: int) -> None:
    plays = SessionPlays(SESSIONS, {0}, seed)
    whole, entered = plays.play(number), plays.play_midway(number, warm_up)
    turns = entered.job.turns
    first = len(whole.turns) - len(turns)
    assert len(whole.turns) // 4 <= first <= len(whole.turns) * 3 // 4
    assert entered.warm_up == min(warm_up + 1, len(turns) - 1)
    assert turns[entered.warm_up :] == whole.turns[first + entered.warm_up :]
    warm = turns[: entered.warm_up]
    assert all(turn.context is not None and turn.context.reply_tokens == 1 for turn in warm)
    assert [turn.pause_s for turn in warm] == [0.0] * (len(warm) - 1) + [3.0] * bool(warm)


def test_tools_of_the_warm_up_take_no_time() -> None:
    turn = Turn(results=(ToolResult("", 5.0),), context=Context((1,), BLOCK, BLOCK, 7))
    entered = SessionPlays([Job("only", (), turns=(turn,) * 20)], (), 0).play_midway(0, 1).job
    assert [turn.results[0].duration_s for turn in entered.turns[:4]] == [0.0, 5.0, 5.0, 5.0]


def test_shared_blocks_are_those_of_several_sessions() -> None:
    beside = replace(SESSIONS[0], id="9-0")
    jobs = [replace(session, id=f"{number}-{number}") for number, session in enumerate(SESSIONS)]
    assert find_shared_blocks([*jobs, beside]) == {0}
    nameless = [replace(SESSIONS[0], id=f"{number}-nameless") for number in range(2)]
    assert find_shared_blocks(nameless) == blocks(SESSIONS[0])


def test_ids_of_any_size_are_renewed_within_their_bits() -> None:
    turn = Turn(context=Context((7, 2**63 - 1), BLOCK, BLOCK + 1, 7))
    plays = SessionPlays([Job("only", (), turns=(turn,))], {7}, 0)
    played = [blocks(plays.play(number)) - {7} for number in range(50)]
    assert len(set.union(*played)) == 50
    assert all(0 <= block < 2**63 for each in played for block in each)


@given(st.integers(2, 9), st.integers(0, 2**32))
def test_samples_of_a_group_share_their_first_prompt_alone(samples: int, seed: int) -> None:
    plays = SessionPlays(SESSIONS, {0}, seed, samples=samples)
    played = [plays.play(number) for number in range(2 * len(SESSIONS) * samples)]
    assert len({job.id for job in played}) == len(played)
    groups = [played[first : first + samples] for first in range(0, len(played), samples)]
    for group in groups:
        assert len({len(job.turns) for job in group}) == 1
        heads = [job.turns[0].context for job in group]
        assert heads == [heads[0]] * samples
        shared = set.intersection(*map(blocks, group))
        assert heads[0] is not None
        assert shared == set(heads[0].blocks)
        assert all(blocks(job) & blocks(other) == shared for job in group for other in group if job is not other)
    apart = [set.union(*map(blocks, group)) for group in groups]
    assert all(one & other == {0} for number, one in enumerate(apart) for other in apart[:number])


def test_what_fills_a_begun_block_is_each_samples_own() -> None:
    first = Context((1, 2), BLOCK, BLOCK + 5, 7)
    second = Context((1, 2, 3), BLOCK, 3 * BLOCK, 7)
    job = Job("only", (), turns=(Turn(context=first), Turn(context=second)))
    one, other = (SessionPlays([job], (), 0, samples=2).play(number) for number in range(2))
    assert one == job
    assert blocks(one) & blocks(other) == {1}
    for turn in other.turns:
        assert turn.context is not None
        assert turn.context.blocks[:2] == other.turns[0].context.blocks  # type: ignore[union-attr]


def test_one_sample_is_played_as_without_groups() -> None:
    alone, grouped = (SessionPlays(SESSIONS, {0}, 3, **given) for given in ({}, {"samples": 4}))
    assert [alone.play(number) for number in range(9)] == [grouped.play(4 * number) for number in range(9)]


def _make_family(turns: int) -> Job:
    def make_turns(first: int, count: int) -> tuple[Turn, ...]:
        return tuple(Turn(context=Context((0, first, first + turn + 1), BLOCK, 3 * BLOCK, 7)) for turn in range(count))

    starts = {f"a{turn}": Start(None, turn, 0.5, is_awaited=True) for turn in range(turns)}
    starts["grandchild"] = Start(f"a{turns - 1}", 0, 0.5, is_awaited=False)
    agents = [
        Job("0-f", (), turns=make_turns(1000 * (number + 1), 2), thread=name, start=start)
        for number, (name, start) in enumerate(starts.items())
    ]
    return Job("0-f", (), turns=make_turns(1, turns), agents=tuple(agents))


def test_each_play_of_a_family_has_blocks_of_its_own() -> None:
    plays = SessionPlays([_make_family(4)], {0}, 0)
    first, second = plays.play(0), plays.play(1)
    assert {job.id for job in second.family} == {"0-f-again-1"}
    played = [{block for each in job.family for block in blocks(each)} for job in (first, second)]
    assert played[0] & played[1] == {0}
    assert len(played[0]) == len(played[1])


def test_who_began_before_the_warm_up_ended_is_left_out() -> None:
    family = _make_family(20)
    entered = SessionPlays([family], {0}, 0).play_midway(0, 2)
    first = len(family.turns) - len(entered.job.turns)
    starts = [agent.start for agent in entered.job.agents]
    # Behind the last request of the warm-up others go on as recorded.
    assert [start.turn for start in starts if start and start.parent is None] == [*range(2, 20 - first)]
    assert starts[-1] == Start("a19", 0, 0.5, is_awaited=False)
