"""What must hold of the CPU cache on two ranks, whatever they run on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from at_workers import Difference, call_workers, count_layers, fail_copies, flip_bit, mend_copies, put_other_blocks
from live_engine import BLOCK
from served import find_distance
from two_ranks import LAYOUTS, Job, TwoRanks, ask, identify, make_jobs

from agentcache.engine.rpc.job_views import view_session

logger = logging.getLogger(__name__)

# Numbers of jobs; those of the others begin with 0.
PUSHING, OWN = 10_000, 20_000
MOST_PUSHING = 100


def check_layout(ranks: TwoRanks, _: Path) -> None:
    expected = LAYOUTS[ranks.layout][1]
    assert call_workers(ranks.engine, count_layers) == expected
    assert call_workers(ranks.cold, count_layers) == expected
    assert ranks.tier.counts.total >= ranks.sizes.on_host


def check_blocks_and_replies(ranks: TwoRanks, folder: Path) -> None:
    """The first turns fill the host, the second ones, which run beside each other, are served from it."""
    jobs = make_jobs(ranks.sizes)
    ranks.start_anew()
    before = ranks.tier.counts.fetched
    ranks.run_one_by_one(jobs)
    differences, expected = ranks.compare(jobs, folder)
    replies = ranks.run_together(jobs)
    fetched = ranks.tier.counts.fetched - before
    describe(differences)
    distances = [find_distance(*pair) for pair in zip(replies, expected, strict=True)]
    logger.info(f"{fetched} blocks fetched, replies apart {max(distances):.2g} of {ranks.tolerance:.2g}")
    assert min(len(each) for each in differences) >= ranks.sizes.least
    assert [each for by_rank in differences for each in by_rank if each.other_bytes] == []
    assert fetched >= ranks.sizes.least / 2
    # Some are written over before their request runs.
    assert sum(reply.cached for reply in replies) >= fetched * BLOCK / 2
    ranks.assert_near(replies, expected)


def describe(differences: list[list[Difference]]) -> None:
    for rank, each in enumerate(differences):
        other = [difference for difference in each if difference.other_bytes]
        most = max((difference.distance for difference in other), default=0.0)
        logger.info(f"rank {rank}: {len(each)} shares compared, {len(other)} differ, by {most:.2g} of the norm at most")


def check_failed_stores(ranks: TwoRanks, _: Path) -> None:
    """What one worker could not store is no hit, though the other has stored it."""
    ranks.start_anew()
    job, stored, failed = one_job(ranks), ranks.tier.counts.stored, ranks.tier.counts.failed_stores
    call_workers(ranks.engine, fail_copies, 1, 1, "none is stored")
    ask(ranks.engine, job)
    push_out(ranks, job)
    check_logged(call_workers(ranks.engine, mend_copies), "none is stored")
    assert ranks.tier.counts.stored == stored
    assert ranks.tier.counts.failed_stores > failed
    assert ranks.tier.host.used_blocks == 0
    check_missed(ranks, job, "overwritten")


def check_logged(logs: list[list[str]], error: str) -> None:
    """An error is told once in a process."""
    told = f"--kv-offloading-size: a copy between the GPU and the CPU cache failed: RuntimeError: {error}"
    assert [lines.count(told) for lines in logs] == [0, 1], logs


def check_failed_fetches(ranks: TwoRanks, _: Path) -> None:
    """What one worker could not fetch is computed."""
    job = store_one(ranks)
    held, fetched, failed = ranks.find_host_blocks(job), ranks.tier.counts.fetched, ranks.tier.counts.failed_fetches
    call_workers(ranks.engine, fail_copies, 1, 1, "none is fetched")
    check_missed(ranks, job, "not fetched")
    check_logged(call_workers(ranks.engine, mend_copies), "none is fetched")
    assert ranks.tier.counts.fetched == fetched
    assert ranks.tier.counts.failed_fetches >= failed + len(held)


def check_missed(ranks: TwoRanks, job: Job, cause: str) -> None:
    """The job's next turn hits nothing, for that cause, and its reply is right."""
    reply = ask(ranks.engine, job)
    (told,) = view_session(ranks.engine.scheduler.tracker, identify(job)["session"])
    turn = told.turns[-1]
    assert reply.cached == sum(turn.hits.values()) == 0, turn
    # Of evictions long ago nothing is known.
    assert cause in turn.evicted_from, turn
    ranks.assert_near_cold([job], [reply])


def check_replies_where_copies_fail(ranks: TwoRanks, _: Path) -> None:
    jobs = make_jobs(ranks.sizes)[: max(12, ranks.sizes.jobs // 4)]
    ranks.start_anew()
    before = ranks.tier.counts.model_copy()
    call_workers(ranks.engine, fail_copies, 1, 3, "some are copied")
    replies = [ranks.run_together(jobs) for _ in range(3)][-1]
    check_logged(call_workers(ranks.engine, mend_copies), "some are copied")
    after = ranks.tier.counts
    assert after.failed_stores > before.failed_stores
    assert after.failed_fetches > before.failed_fetches
    assert after.fetched > before.fetched
    ranks.assert_near_cold(jobs, replies)


def check_flipped_bit(ranks: TwoRanks, folder: Path) -> None:
    """The negative control: one bit at the second worker is seen, and nothing else."""
    job = store_one(ranks)
    held = ranks.find_host_blocks(job)
    flipped = len(held) // 2
    call_workers(ranks.engine, flip_bit, 1, list(held.values())[flipped])
    (first, second), _ = ranks.compare([job], folder)
    describe([first, second])
    assert [each.other_bytes for each in first] == [0] * len(held)
    assert [each.other_bytes for each in second] == [int(place == flipped) for place in range(len(held))]


def check_wrong_blocks(ranks: TwoRanks, _: Path) -> None:
    """What the second worker fetches counts: where its host memory has other blocks, the reply is another."""
    expected = ranks.ask_cold(one_job(ranks), 16)
    distances = []
    for is_wrong in (False, True):
        job = store_one(ranks)
        held = list(ranks.find_host_blocks(job).values())
        if is_wrong:
            others = list(ranks.find_host_blocks(make_jobs(ranks.sizes, PUSHING)[0]).values())
            call_workers(ranks.engine, put_other_blocks, 1, held[: len(others)], others[: len(held)])
        fetched = ranks.tier.counts.fetched
        distances.append(find_distance(ask(ranks.engine, job, 16), expected))
        assert ranks.tier.counts.fetched - fetched == len(held)
    right, wrong = distances
    logger.info(f"right blocks {right:.2g}, wrong ones {wrong:.2g} apart, of {ranks.tolerance:.2g}")
    assert right <= ranks.tolerance < wrong


def one_job(ranks: TwoRanks) -> Job:
    return make_jobs(ranks.sizes._replace(jobs=1), OWN)[0]


def store_one(ranks: TwoRanks) -> Job:
    """Have a job whose blocks are in the host's memory, most at least, and none of them on the GPUs."""
    ranks.start_anew()
    job = one_job(ranks)
    ask(ranks.engine, job)
    push_out(ranks, job)
    assert len(ranks.find_host_blocks(job)) > len(job.prompt) // BLOCK // 2
    return job


def push_out(ranks: TwoRanks, job: Job) -> None:
    """Other jobs use the GPUs' cache until it has nothing of this one, whose pin ends meanwhile."""
    keys, cache = ranks.engine.block_keys(job.prompt, salt=job.salt), ranks.engine.pool.cached_block_hash_to_block
    for other in make_jobs(ranks.sizes._replace(jobs=MOST_PUSHING), PUSHING):
        if not any(cache.get_one_block(key) for key in keys):
            return
        ranks.run_one_by_one([other])
    raise AssertionError("the job's blocks stay on the GPUs")


CHECKS: dict[str, Callable[[TwoRanks, Path], None]] = {
    "layers of the layout": check_layout,
    "every stored block": check_blocks_and_replies,
    "stores fail at the second": check_failed_stores,
    "fetches fail at the second": check_failed_fetches,
    "replies where copies fail": check_replies_where_copies_fail,
    "one bit flipped is seen": check_flipped_bit,
    "wrong blocks are seen": check_wrong_blocks,
}
each_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
