"""The pages' links, lengths and the paths and names that they mention."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "results").glob("*.md"))]
FOLDERS = ("agentcache", "benchmarks", "csrc", "docs", "examples", "tests", "tool_runtime", "workloads")
# In words: a limit of lines makes lines long.
LENGTHS = {"README.md": 800, "docs/results.md": 900}

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
# `a/folder/`, `a/file.py`; capitals are place holders.
MENTIONED_PATH = re.compile(r"`([a-z_.][a-z0-9_./-]*(?:/|\.(?:py|hpp|cpp|md|json|toml|pyi)))`")
# `a/file.py`: `one_name`, `other`
MENTIONED_NAMES = re.compile(r"`([\w./-]+\.(?:py|hpp))`: ((?:`\w+`(?: \([^)]*\))?(?:, )?)+)")
# What runs write, and a folder of somebody else's data.
NOT_OURS = {"run.json", "summary.json", "traces/"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read_prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def list_anchors(page: Path) -> set[str]:
    """Make anchors from headings as GitHub does: lower case, without punctuation, repeated ones numbered."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in HEADING.findall(read_prose(page)):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


@cache
def list_files() -> list[str]:
    """List the project's files, and its folders with a slash behind."""
    found = [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    return [f"{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in found]


def find_files(path: str) -> list[str]:
    """Find the project's files and folders that end with `path`: pages leave out what the sentence has said."""
    return [file for file in list_files() if f"/{file}".endswith(f"/{path}")]


def list_links(page: Path) -> Iterator[tuple[Path, str]]:
    for target in LINK.findall(read_prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path if path else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in list_links(page):
        assert path.exists(), path
        assert not anchor or anchor in list_anchors(path), f"{path}#{anchor}"


def test_every_page_of_results_is_linked() -> None:
    linked = {path.resolve() for path, _ in list_links(ROOT / "docs" / "results.md")}
    assert set((ROOT / "docs" / "results").glob("*.md")) <= linked


def test_a_test_stands_behind_each_row_of_what_works() -> None:
    table = (ROOT / "docs" / "support.md").read_text().split("| model or feature |")[1].split("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 5
    assert [row for row in rows if "](../tests/" not in row.split("|")[-2]] == []


@pytest.mark.parametrize("page", LENGTHS)
def test_first_pages_stay_short(page: str) -> None:
    assert len((ROOT / page).read_text().split()) <= LENGTHS[page]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_in_backticks_exist(page: Path) -> None:
    paths = set(MENTIONED_PATH.findall(read_prose(page))) - NOT_OURS
    assert [path for path in sorted(paths) if not find_files(path)] == []


def test_names_behind_a_path_stand_in_that_file() -> None:
    mentioned = MENTIONED_NAMES.findall(read_prose(ROOT / "docs" / "structure.md"))
    assert mentioned
    for path, names in mentioned:
        (file,) = find_files(path)
        text = (ROOT / file).read_text()
        assert [name for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", text)] == []
