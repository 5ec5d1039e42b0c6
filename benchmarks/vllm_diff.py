"""Print what a release of vLLM changed in the functions and classes that agentcache calls, overrides or replaces.

    python benchmarks/vllm_diff.py OLD NEW [--source]

`OLD` and `NEW` are folders with a folder `vllm` in them: an unpacked wheel, or an environment's site-packages. Sources
are compared without comments, docstrings and annotations, and nothing of vLLM is imported. docs/new-vllm.md says when.
"""

from __future__ import annotations

import ast
import difflib
import re
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from agentcache.engine.vllm import internals
from agentcache.engine.vllm.internals import MOVED

ROOT = Path(__file__).parents[1]
FOLDERS = ("agentcache", "tests", "benchmarks")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


class Target(NamedTuple):
    """What we import: a module's name of vLLM's and a name in it."""

    module: str
    name: str


class _Bare(ast.NodeTransformer):
    """Leaves out what does not change what a function does."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node


class Release:
    """The sources of one release."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "vllm").is_dir():
            raise SystemExit(f"{folder}: has no folder vllm; give an unpacked wheel or a site-packages folder")
        self._folder = folder
        self._modules: dict[str, dict[str, ast.stmt]] = {}

    def find(self, target: Target) -> Definition | None:
        """Find a definition, also where the module only passes it on."""
        found = self._read(target.module).get(target.name)
        if isinstance(found, ast.ImportFrom) and not found.level and (found.module or "").startswith("vllm"):
            (name,) = (each.name for each in found.names if target.name in (each.asname, each.name))
            return self.find(Target(found.module or "", name))
        return found if isinstance(found, Definition) else None

    def find_elsewhere(self, name: str) -> list[str]:
        """Find the modules that define a function or class of this name."""
        pattern = re.compile(rf"^(?:async )?(?:def|class) {name}\b", re.MULTILINE)
        return [module for module, text in self._texts.items() if pattern.search(text)]

    @cached_property
    def _texts(self) -> dict[str, str]:
        paths = sorted((self._folder / "vllm").rglob("*.py"))
        names = (".".join(path.relative_to(self._folder).with_suffix("").parts) for path in paths)
        return {name.removesuffix(".__init__"): path.read_text() for name, path in zip(names, paths, strict=True)}

    def _read(self, module: str) -> dict[str, ast.stmt]:
        if module not in self._modules:
            base = self._folder / module.replace(".", "/")
            paths = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
            tree = ast.parse(paths[0].read_text()) if paths else ast.Module([], [])
            self._modules[module] = {name: node for node in ast.walk(tree) for name in _names_of(node)}
        return self._modules[module]


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (each.asname or each.name for each in node.names)
    elif isinstance(node, ast.Assign):
        yield from (each.id for each in node.targets if isinstance(each, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def read_own(*folders: str) -> tuple[set[Target], set[str]]:
    """Read what our sources import of vLLM, and every name that they call, read or define."""
    targets, used = set(), set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                targets |= {Target(node.module or "", each.name) for each in node.names}
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, Function):
                used.add(node.name)
    return targets | set(read_listed()), used | {name for name in _listed_methods() if name}


def read_listed() -> Iterator[Target]:
    """Read what `internals.py` and a contract test list beside: classes and functions by name, and what has moved."""
    for name in _listed():
        module, _, path = name.partition(":")
        yield Target(module, path.partition(".")[0])
    for name, places in MOVED.items():
        yield Target(places[min(places)], name)


def _listed() -> Iterator[str]:
    extended = runpy.run_path(str(ROOT / "tests/contract/test_extension_points.py"))["METHODS"]
    for table in (*vars(internals).values(), extended):
        if isinstance(table, dict):
            yield from (name for name in table if ":" in name)


def _listed_methods() -> Iterator[str]:
    return (name.partition(":")[2].partition(".")[2] for name in _listed())


def list_parts(found: Definition, used: set[str]) -> dict[str, ast.AST]:
    """Split a class into the methods that we use; what is no class is one part."""
    if not isinstance(found, ast.ClassDef):
        return {"": found}
    methods = (node for node in found.body if isinstance(node, Function))
    return {f".{node.name}": node for node in methods if node.name in used or node.name == "__init__"}


def compare(target: Target, old: Release, new: Release, used: set[str]) -> Iterator[tuple[str, str, str]]:
    """Compare one target. Yields what changed of which part, and the difference of its sources."""
    before, after = old.find(target), new.find(target)
    if before is None:
        return
    if after is None:
        places = new.find_elsewhere(target.name)
        yield "", f"gone; now in {', '.join(places)}" if places else "gone", ""
        return
    parts, others = list_parts(before, used), list_parts(after, used)
    for part, one in parts.items():
        if part not in others:
            yield part, "gone from this class", ""
            continue
        texts = [ast.unparse(_Bare().visit(each)) for each in (one, others[part])]
        if texts[0] != texts[1]:
            lines = difflib.unified_diff(texts[0].splitlines(), texts[1].splitlines(), lineterm="", n=2)
            heads = [text.splitlines()[0] for text in texts]
            is_called = isinstance(one, Function) and heads[0] != heads[1]
            kind = f"other parameters: {heads[1]}" if is_called else "other source"
            yield part, kind, "\n".join(list(lines)[2:])


def list_changes(old: Release, new: Release, *, with_source: bool) -> Iterator[str]:
    """List what changed, one line each, then how many."""
    targets, used = read_own(*FOLDERS)
    count = 0
    for target in sorted(targets):
        for part, kind, lines in compare(target, old, new, used):
            count += 1
            yield f"{target.module}.{target.name}{part}: {kind}"
            if with_source and lines:
                yield lines
    yield f"{count} changes in {len(targets)} names of vLLM's"


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--source", action="store_true", help="print how each source changed as well")
    options = parser.parse_args()
    for line in list_changes(Release(options.old), Release(options.new), with_source=options.source):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
