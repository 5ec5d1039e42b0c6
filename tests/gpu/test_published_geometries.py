"""What test_families.py checks, of layers as large as those of published models: whole CUDA graphs, steps ahead.

The models have 4 to 8 layers, at least two of each kind that keeps KV or states otherwise (published_geometries.py):
layers of a kind are alike, a whole one does not fit a GPU twice, and its start would take minutes. Weights are random
(random_weights.py). On a GPU of 80 GB the pairs start in four waves, on one of 141 GB in two. `-k gpt-oss-20b`
tests one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from asked_alone import describe
from engine_pair import Pair, Starting, start_pair
from family_checks import check_before_reuse, check_jobs, check_served, check_wrong_block
from published_geometries import FAMILIES, count_pair_gib, find_options, shorten, write_config
from waves import Waves, plan_waves

# A wave's start counts to its first test.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

# What the driver and others keep.
SPARE_GIB = 4.0


@pytest.fixture(scope="module")
def waves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waves]:
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {each.get("published") for each in params}
    sizes = {name: count_pair_gib(family) for name, family in FAMILIES.items() if name in wanted}

    def start(name: str) -> AbstractContextManager[Starting]:
        family = FAMILIES[name]
        path = write_config(shorten(family.model), tmp_path_factory.mktemp(family.model))
        return start_pair(path, family.scale, family.sampling, **find_options(family))

    with Waves(plan_waves(sizes, torch.cuda.mem_get_info()[0] / 2**30 - SPARE_GIB), start) as waves:
        yield waves


@pytest.fixture(scope="module")
def published(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(published: str, waves: Waves) -> Pair:
    return waves.get(published).wait()


of_each = pytest.mark.parametrize("published", FAMILIES, indirect=True, scope="module")


@of_each
def test_the_engine_of_published_layers_is_as_served(published: str, pair: Pair) -> None:
    check_served(pair)
    served = pair.engine.call(describe)
    assert served.has_full_graphs
    # vLLM 0.32 does not with drafts by ngram.
    assert served.schedules_ahead or FAMILIES[published].has_drafts


@of_each
def test_engines_of_published_layers_agree_before_reuse(published: str, pair: Pair) -> None:
    check_before_reuse(FAMILIES[published], pair)


@of_each
def test_replies_of_jobs_of_published_layers(published: str, pair: Pair) -> None:
    check_jobs(FAMILIES[published], pair)


@of_each
def test_one_wrong_block_of_published_layers_is_seen(pair: Pair) -> None:
    check_wrong_block(pair)
