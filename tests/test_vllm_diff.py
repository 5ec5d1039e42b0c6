"""What `benchmarks/vllm_diff.py` finds between two releases, by their sources."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "benchmarks" / "vllm_diff.py"))
OLD = '''
def stays(a: int) -> int:
    """Said in one way."""
    return a
def moves(): ...
class Pool:
    def take(self, count): return count
    def leave(self): return 1
    def unused(self): return 1
'''
NEW = """
def stays(a):
    # Said in another.
    return a
class Pool:
    def take(self, count, urgent=False): return count
    def leave(self): return 2
    def unused(self): return 2
"""


@pytest.fixture
def releases(tmp_path: Path) -> list[Any]:
    for name, modules in {"old": {"here": OLD}, "new": {"here": NEW, "there": "def moves(): ..."}}.items():
        (tmp_path / name / "vllm").mkdir(parents=True)
        for module, source in modules.items():
            (tmp_path / name / "vllm" / f"{module}.py").write_text(source)
    return [TOOL["Release"](tmp_path / name) for name in ("old", "new")]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stays", []),
        ("moves", [("", "gone; now in vllm.there")]),
        ("Pool", [(".take", "other parameters: def take(self, count, urgent=False):"), (".leave", "other source")]),
        ("is_new", []),
    ],
)
def test_what_changed_is_told(releases: list[Any], name: str, changes: list[tuple[str, str]]) -> None:
    found = TOOL["compare"](TOOL["Target"]("vllm.here", name), *releases, {"take", "leave"})
    assert [each[:2] for each in found] == changes


def test_our_own_sources_say_what_is_compared() -> None:
    targets, used = TOOL["read_own"]("agentcache/engine/segments")
    assert ("vllm.v1.core.block_pool", "BlockPool") in targets
    assert ("vllm.v1.core.kv_cache_utils", "get_kv_cache_groups") in targets
    assert {"get_computed_blocks", "_free_request"} <= used


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no folder vllm; give an unpacked wheel"):
        TOOL["Release"](tmp_path)
