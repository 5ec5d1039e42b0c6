"""Fits pages to the site, as a hook of mkdocs: files outside of docs/ are not on it, so a link to one is its path.

Anchors are GitHub's, so that a page's links work at both places.
"""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with each page."""
    return OUTSIDE.sub(r"\1 (`\2`)", markdown)


def on_config(config: Any) -> Any:
    """Called by mkdocs with what mkdocs.yml says."""
    config.mdx_configs["toc"] = {"permalink": True, "slugify": make_anchor}
    return config


def make_anchor(heading: str, separator: str) -> str:
    """Make an anchor as GitHub does: lower case, without punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)
