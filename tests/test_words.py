"""Docstrings, comments, messages and pages say which request, caller or server they mean, and what happens to it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for folder in ("agentcache", "tool_runtime", "workloads", "csrc")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".pyi", ".hpp", ".cpp"}
)
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
RIDDLES = re.compile(r"\b(whoever|nobody|what is lost|who waits|for want of|(is|are|was) told of)\b", re.IGNORECASE)


# How a module's docstring may not begin: it says what the module does.
QUESTIONS = re.compile(r"(What|Which|How|Why|Where|Whose|Who|When|Whether|Under which|From which)\b")


def find_riddles(text: str) -> list[str]:
    """Find the phrases for which there are plainer ones: "evicted", "queued requests", "no request"."""
    # A phrase may go on behind the mark of the next line's comment.
    return [found.group() for found in RIDDLES.finditer(re.sub(r"\s+(#|//+|\*)?\s*", " ", text))]


def test_riddles_are_found_across_lines() -> None:
    assert find_riddles("# What is\n# lost. Whoever\n    waits.") == ["What is lost", "Whoever"]
    assert find_riddles("Evicted blocks of queued requests.") == []


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in SOURCES}))
def test_sources_speak_plainly(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): riddles
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == folder and (riddles := find_riddles(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_speak_plainly(page: Path) -> None:
    assert find_riddles(page.read_text(encoding="utf-8")) == []


def test_modules_begin_with_what_they_do() -> None:
    """The first sentence of a module is a verb's, no question's."""
    modules = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in PYTHON}
    assert [str(path.relative_to(ROOT)) for path, text in modules.items() if QUESTIONS.match(text)] == []
