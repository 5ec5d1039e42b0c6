"""Fits pages to the site, as hooks of mkdocs (mkdocs.yml).

README, changelog and the examples' page stand outside of docs/ and become pages of the site. Other files are not on it:
a link to one shows its path, in a table when it is pointed at. Anchors are GitHub's, so that links work at both places.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
# Pages of the site whose files are elsewhere.
ADDED = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "examples.md": "examples/README.md"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")


def on_config(config: Any) -> Any:
    config.mdx_configs["toc"] = {"permalink": True, "slugify": make_anchor}
    return config


def on_files(files: Any, config: Any) -> Any:
    for name, source in ADDED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    return fit_links(markdown, name, ADDED.get(name, DOCS + name)).replace(f'src="{DOCS}', 'src="')


def fit_links(text: str, name: str, source: str) -> str:
    """Make a page's links those of the site: of the page `name`, whose file is `source` of the repository."""
    pages = {path: page for page, path in ADDED.items()}

    def fit(found: re.Match[str]) -> str:
        label, target, anchor = found.groups()
        if "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path not in pages and not path.startswith(DOCS):
            is_cell = text[text.rfind("\n", 0, found.start()) + 1] == "|"
            return f'<span title="{path}">{label}</span>' if is_cell else f"{label} (`{path}`)"
        there = pages.get(path, path.removeprefix(DOCS))
        return f"[{label}]({posixpath.relpath(there, posixpath.dirname(name) or '.')}{anchor})"

    return LINK.sub(fit, text)


def make_anchor(heading: str, separator: str) -> str:
    """Make an anchor as GitHub does: lower case, without punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)
