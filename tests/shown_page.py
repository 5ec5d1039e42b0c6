"""The text that a page shows."""

from __future__ import annotations

import html
import re
from pathlib import Path


def read_page(path: Path) -> str:
    """Read it: a row of a table is a line, as in "| 1 | vllm | "."""
    page = re.sub(r"<(style|svg).*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    cells = re.sub(r"</t[dh]>", " | ", re.sub(r"<tr[^>]*>", "| ", page))
    return html.unescape(re.sub(r"<[^>]+>", "", cells))
