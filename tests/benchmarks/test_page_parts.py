"""What follows from the sources stands so on the pages: `benchmarks/page_parts.py` writes it."""

from __future__ import annotations

import pytest
from import_picture import draw_imports, find_floors, list_lines
from page_parts import DOCS, PARTS, PICTURE, write_parts
from site_pages import fit_links, make_anchor

CHAIN = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset[str]()}


def test_gpus_are_those_of_the_data_sheets() -> None:
    """That of metrics is looked at where they are loaded: tests/server/test_runtime_metrics.py."""
    page = (DOCS / PARTS["gpus"][0]).read_text()
    assert "<!-- part: gpus -->" in page
    assert write_parts(page) == page, "python benchmarks/page_parts.py"


def test_the_picture_is_of_these_imports() -> None:
    assert PICTURE.read_text() == draw_imports(), "python benchmarks/page_parts.py"


def test_whoever_imports_stands_above() -> None:
    assert find_floors(CHAIN) == {"a": 0, "b": 1, "c": 2}
    assert [*list_lines(CHAIN)] == [("a", "b"), ("b", "c")], "a imports c through b"


def test_a_circle_of_imports_is_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        find_floors({"a": frozenset("b"), "b": frozenset("a")})


@pytest.mark.parametrize(
    ("text", "name", "source", "on_the_site"),
    [
        ("[a](docs/plan.md#b)", "index.md", "README.md", "[a](plan.md#b)"),
        ("[a](../plan.md)", "results/x.md", "docs/results/x.md", "[a](../plan.md)"),
        ("[a](../CHANGELOG.md)", "plan.md", "docs/plan.md", "[a](changelog.md)"),
        ("[a](LICENSE)", "index.md", "README.md", "a (`LICENSE`)"),
        ("| [a](../tests/x.py) |", "plan.md", "docs/plan.md", '| <span title="tests/x.py">a</span> |'),
        ("[a](https://x.org/y) [b](#c)", "plan.md", "docs/plan.md", "[a](https://x.org/y) [b](#c)"),
    ],
)
def test_links_are_those_of_the_site(text: str, name: str, source: str, on_the_site: str) -> None:
    assert fit_links(text, name, source) == on_the_site


def test_anchors_are_those_of_github() -> None:
    assert make_anchor("A GPU: what's `new`?", "-") == "a-gpu-whats-new"
