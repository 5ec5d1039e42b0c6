"""The pages' links, lengths, and the paths and names that they mention."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import agentcache

ROOT = Path(__file__).parents[1]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "results").glob("*.md"))]
GUIDES = [page for page in PAGES if page.name != "CHANGELOG.md"]
FOLDERS = ("agentcache", "benchmarks", "csrc", "docs", "examples", "tests", "tool_runtime", "workloads")
# Words: of a guide and of all pages but the changelog, which is counted in lines.
GUIDE, ALL = 900, 35_000
# Pages with another limit. README counts with its figures and commands.
LENGTHS = {"docs/results.md": 1500, "docs/results/what-did-not-work.md": 1500, "docs/metrics-reference.md": 1500}
FIRST_SCREENS = 800
VERSION_LINES = 10
SENTENCE, CELL, TABLES = 40, 120, 12

WORD = re.compile(r"[^\s|]*[^\W\d_][^\s|]*")
# Fenced code, headings, tables, commands, comments and pictures are no sentences.
NO_PROSE = re.compile(r"^```.*?^```$|^(?:#|\||    |<).*?$", re.MULTILINE | re.DOTALL)
# Ends of sentences, paragraphs and points.
SENTENCE_END = re.compile(r"[.!?][\"*)]*\s+|\n\s*\n|\n(?= *(?:-|\d\.) )")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
LINK_TARGET = re.compile(r"(?<=\])\([^)\s]*\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
# `a/folder/`, `a/file.py`; capitals are place holders.
MENTIONED_PATH = re.compile(r"`([a-z_.][a-z0-9_./-]*(?:/|\.(?:py|hpp|cpp|md|json|toml|pyi)))`")
# `a/file.py`: `one_name`, `other`
MENTIONED_NAMES = re.compile(r"`([\w./-]+\.(?:py|hpp))`: ((?:`\w+`(?: \([^)]*\))?(?:, )?)+)")
# `docs/page.md#anchor`, but none of an earlier commit.
NAMED_PAGE = re.compile(r"(?<![:\w])(docs/[\w/-]+\.md)(?:#([\w-]+))?")
CODE = ("agentcache", "benchmarks", "csrc", "tool_runtime", "workloads")
SOURCES = {".py", ".hpp", ".cpp", ".json", ".js", ".jinja"}
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


def count_words(text: str) -> int:
    return len(WORD.findall(text))


def list_long_sentences(text: str) -> list[str]:
    sentences = SENTENCE_END.split(NO_PROSE.sub("", text))
    return [sentence for sentence in sentences if count_words(sentence) > SENTENCE]


def list_wide_cells(text: str) -> list[str]:
    # Of a link the text is read.
    lines = (LINK_TARGET.sub("", line) for line in text.splitlines() if line.startswith("|"))
    cells = (cell.strip() for line in lines for cell in line.split("|"))
    return [cell for cell in cells if len(cell) > CELL]


def test_what_is_too_long_is_found() -> None:
    long = "a " * 50
    text = f"# {long}\n\n```\n{long}\n```\n\nOne {'a ' * 39}a.\nTwo: {'b ' * 39}\n\n| {'c' * 121} | {'d' * 120} |\n"
    assert [sentence.split()[0] for sentence in list_long_sentences(text)] == ["One"]
    assert list_wide_cells(text) == ["c" * 121]
    assert count_words("one, 2 | 3.5 % `four`") == 2


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_pages_are_short(page: Path) -> None:
    text = page.read_text()
    assert count_words(text) <= LENGTHS.get(name_of(page), GUIDE)
    assert list_long_sentences(text) == []
    assert list_wide_cells(text) == []


def test_readme_has_few_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= FIRST_SCREENS


def test_all_pages_together_have_few_words() -> None:
    assert sum(count_words(page.read_text()) for page in GUIDES) <= ALL


def test_a_version_has_ten_lines_and_a_date() -> None:
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(versions) > 1
    for version in versions:
        head, *lines = version.strip().splitlines()
        assert head == "Unreleased" or re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", head)
        assert sum(map(bool, lines)) <= VERSION_LINES, head


def test_the_latest_version_is_that_of_the_package() -> None:
    latest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest
    assert latest[1] == agentcache.__version__


def test_all_results_stand_in_a_dozen_tables() -> None:
    assert len(re.findall(r"^\| -", (ROOT / "docs" / "results.md").read_text(), re.MULTILINE)) <= TABLES


def test_pages_that_sources_name_exist() -> None:
    sources = [path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in SOURCES]
    tops = [ROOT / name for name in ("Makefile", "Dockerfile", "pyproject.toml")]
    named = {found for path in (*sources, *tops) for found in NAMED_PAGE.findall(path.read_text())}
    assert len(named) > 10
    for page, anchor in named:
        assert (ROOT / page).exists(), page
        assert not anchor or anchor in list_anchors(ROOT / page), f"{page}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_in_backticks_exist(page: Path) -> None:
    paths = set(MENTIONED_PATH.findall(read_prose(page))) - NOT_OURS
    assert [path for path in sorted(paths) if not find_files(path)] == []


def test_names_behind_a_path_stand_in_that_file() -> None:
    mentioned = MENTIONED_NAMES.findall(read_prose(ROOT / "docs" / "where.md"))
    assert mentioned
    for path, names in mentioned:
        (file,) = find_files(path)
        text = (ROOT / file).read_text()
        assert [name for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", text)] == []
