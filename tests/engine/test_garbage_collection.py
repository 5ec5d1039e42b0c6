"""Python's garbage collector may run inside any allocation, also of an object that is half made."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Makes each compiled type, with everything else frozen, so that a collection comes after a few allocations. Each
# threshold has a process of its own: only the first object of a type is made slowly.
MAKE_ALL = """
import gc, os
from vllm.v1.core.block_pool import BlockPool
from agentcache import _evictor
from agentcache._evictor import LruEvictor
from agentcache.engine.blocks.block_queue import BlockQueue, replace_queue

COST = dict(slope_s=1e-9, base_s=2e-5, floor_s=1e-7)
FREQUENCY = dict(alpha_s=14.4, beta_s=0.36, tau0_s=9.75)
pools = [BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=16) for _ in range(3)]

class Subclass(BlockQueue):
    pass

class OwnEvictor(_evictor.PythonEvictor):
    pass

for threshold in range(1, 6):
    child = os.fork()
    if not child:
        break
    print(threshold, os.waitpid(child, 0)[1], flush=True)
else:
    os._exit(0)
gc.collect(); gc.freeze(); gc.set_threshold(threshold)
made = [
    _evictor.FreeContext(job=1),
    _evictor.LruEvictor(),
    OwnEvictor(),
    _evictor.AsymCacheEvictor(num_blocks=8, **FREQUENCY, **COST),
    _evictor.AsymCacheLinearEvictor(num_blocks=8, **FREQUENCY, **COST),
    _evictor.ReturnTimeEvictor(num_blocks=8, window=100, prior_returns=1, least_wait_s=1, **COST),
    _evictor.MaxScoreEvictor(num_blocks=8, **FREQUENCY),
    _evictor.PensieveEvictor(num_blocks=8, **COST),
    _evictor.PinnedEvictor(_evictor.LruEvictor(), num_blocks=8, cheapest_first=True),
    *[replace_queue(pool, LruEvictor(), lambda: 0.0) for pool in pools],
    Subclass(pools[0].blocks, [], LruEvictor(), lambda: 0.0),
]
compiled = {name for name, value in vars(_evictor).items() if isinstance(value, type)}
compiled -= {"Evictor", "IntegrityError", "NotFreeError"}
assert compiled == {each.__name__ for one in made for each in type(one).__mro__} & compiled, compiled
for pool in pools:
    for _ in range(20):
        taken = pool.get_new_blocks(5)
        pool.free_blocks(taken)
        assert len(pool.free_block_queue.get_all_free_blocks()) == pool.get_num_free_blocks() == 7
os._exit(0)
"""


@pytest.mark.engine
def test_a_collection_meets_no_half_made_object() -> None:
    run = subprocess.run([sys.executable, "-c", MAKE_ALL], capture_output=True, text=True, check=False)
    assert run.stdout == "".join(f"{threshold} 0\n" for threshold in range(1, 6)), run.stderr[-2000:]
