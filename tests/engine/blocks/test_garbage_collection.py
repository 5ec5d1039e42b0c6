"""Python's garbage collector may run inside any allocation, also of an object that is half made."""

from __future__ import annotations

import gc

import pytest
from loaded_once import get_context

COST = {"slope_s": 1e-9, "base_s": 2e-5, "floor_s": 1e-7}
FREQUENCY = {"alpha_s": 14.4, "beta_s": 0.36, "tau0_s": 9.75}


def make_all(threshold: int) -> None:
    """Make each compiled type, with everything else frozen, so that a collection comes after a few allocations."""
    from vllm.v1.core.block_pool import BlockPool

    from agentcache import _evictor
    from agentcache.engine.blocks.block_queue import BlockQueue, replace_queue

    pools = [BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=16) for _ in range(3)]
    subclass, own_evictor = type("Subclass", (BlockQueue,), {}), type("OwnEvictor", (_evictor.PythonEvictor,), {})
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold)
    waits = _evictor.ReturnWaits(least_wait_s=1)
    made = [
        _evictor.FreeContext(job=1),
        _evictor.LruEvictor(),
        own_evictor(),
        _evictor.AsymCacheEvictor(num_blocks=8, **FREQUENCY, **COST),
        _evictor.AsymCacheLinearEvictor(num_blocks=8, **FREQUENCY, **COST),
        waits,
        _evictor.ReturnTimeEvictor(num_blocks=8, waits=waits, **COST),
        _evictor.MaxScoreEvictor(num_blocks=8, **FREQUENCY),
        _evictor.PensieveEvictor(num_blocks=8, **COST),
        _evictor.PinnedEvictor(_evictor.LruEvictor(), num_blocks=8, cheapest_first=True),
        *[replace_queue(pool, _evictor.LruEvictor(), lambda: 0.0) for pool in pools],
        subclass(pools[0].blocks, [], _evictor.LruEvictor(), lambda: 0.0),
    ]
    compiled = {name for name, value in vars(_evictor).items() if isinstance(value, type)}
    compiled -= {"Evictor", "IntegrityError", "NotFreeError"}
    assert compiled == {each.__name__ for one in made for each in type(one).__mro__} & compiled, compiled
    for pool in pools:
        for _ in range(20):
            taken = pool.get_new_blocks(5)
            pool.free_blocks(taken)
            assert len(pool.free_block_queue.get_all_free_blocks()) == pool.get_num_free_blocks() == 7


@pytest.mark.engine
@pytest.mark.usefixtures("forkserver")
def test_a_collection_meets_no_half_made_object() -> None:
    """Each threshold has a process of its own: only the first object of a type is made slowly."""
    processes = [get_context().Process(target=make_all, args=(threshold,)) for threshold in range(1, 6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 5
