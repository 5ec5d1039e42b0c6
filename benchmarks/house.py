"""How large the house is: figures of the tree that this Python imports, each with the rule by which it is counted.

.venv/bin/python benchmarks/house.py [--list]

Product is `agentcache/`, `tool_runtime/` and `workloads/`. Lines are counted with blanks and comments. The code is
read as syntax trees; the modules of a turn are found by running one.
"""

from __future__ import annotations

import argparse
import ast
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from one_turn import trace_turn

import agentcache
from agentcache.config import AgentCacheConfig, iterate_knobs

ROOT = Path(agentcache.__file__).parents[1]
PRODUCT = ("agentcache", "tool_runtime", "workloads")
ENGINE = ROOT / "agentcache/engine"
FRONT_END = ROOT / "agentcache/front_end"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Figure(NamedTuple):
    """`found` are the things that were counted, where each has a name."""

    name: str
    count: int
    rule: str
    found: tuple[str, ...] = ()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def list_modules(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def list_product() -> list[Path]:
    return list_modules(*(ROOT / package for package in PRODUCT))


def shorten(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def count_lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def list_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The module of each import, and the name by which this module knows it, at the top or within a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, each.asname or each.name.partition(".")[0]) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, each.asname or each.name) for each in node.names)


def imports_vllm(path: Path) -> bool:
    return any(module.partition(".")[0] == "vllm" for module, _ in list_imports(parse(path)))


def count_vllm_importers() -> Figure:
    room = ENGINE / "vllm"
    found = [shorten(path) for path in list_product() if room not in path.parents and imports_vllm(path)]
    rule = "product files outside agentcache/engine/vllm/ with an import of vllm or a module of it, for types as well"
    return Figure("files that import vLLM elsewhere", len(found), rule, tuple(found))


def find_table(name: str) -> Iterator[ast.Dict]:
    """The dictionaries of the engine that are bound to a name that ends so."""
    for path in list_modules(ENGINE):
        for node in parse(path).body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            target = node.targets[0] if isinstance(node, ast.Assign) else target
            is_table = isinstance(target, ast.Name) and target.id.endswith(name)
            if is_table and isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
                yield node.value


def count_replaced() -> Figure:
    listed = [ast.unparse(key) for table in find_table("REPLACED") for key in table.keys if key is not None]
    unlisted = [found for path in list_product() for found in find_set(path)]
    rule = "keys of REPLACED, and attributes of names imported from vllm or torch that any product file assigns to"
    return Figure("replaced names, listed + not", len(listed) + len(unlisted), rule, (*listed, *unlisted))


def find_set(path: Path) -> Iterator[str]:
    foreign = {name for module, name in list_imports(parse(path)) if module.partition(".")[0] in ("vllm", "torch")}
    for node in ast.walk(parse(path)):
        for target in list_targets(node):
            root: ast.expr = target
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(target, ast.Attribute) and isinstance(root, ast.Name) and root.id in foreign:
                yield f"{ast.unparse(target)} ({shorten(path)})"


def list_targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def count_internals() -> Figure:
    signatures = sum(len(table.keys) for table in find_table("SIGNATURES"))
    listed = [value for table in find_table("ATTRIBUTES") for value in table.values]
    attributes = sum(len(value.elts) for value in listed if isinstance(value, ast.Tuple))
    moved = sum(len(table.keys) for table in find_table("MOVED"))
    rule = (
        "keys of the tables SIGNATURES and MOVED, and names in the tuples of ATTRIBUTES: what we call, override, "
        "replace, read or set, without the public methods by which vLLM lets others extend it, which "
        "tests/contract/test_extension_points.py has (scheduler, connector, logits processor, parsers, from_cli_args)"
    )
    found = (f"{signatures} + {attributes} + {moved}",)
    return Figure("internals relied on", signatures + attributes + moved, rule, found)


def count_none_tests() -> Figure:
    tests = [
        ast.unparse(node)
        for node in ast.walk(parse(ENGINE / "scheduler.py"))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Constant) and each.value is None for each in node.comparators)
    ]
    rule = "comparisons with None in agentcache/engine/scheduler.py"
    return Figure("tests for None in scheduler.py", len(tests), rule, tuple(tests))


def count_late_slots() -> Figure:
    modules = list_modules(ENGINE, FRONT_END)
    slots = {slot for path in modules for slot in find_placeholders(path)}
    found = {name for path in modules for name in find_filled(path) if name in slots}
    rule = (
        "attributes that an __init__ in engine/ or front_end/ sets to None, a lambda or a function of its module, and "
        "that these set from outside the object, or by a method that does nothing else; equal names count once"
    )
    return Figure("slots filled after construction", len(found), rule, tuple(sorted(found)))


def find_placeholders(path: Path) -> Iterator[str]:
    functions = {node.name for node in parse(path).body if isinstance(node, Function)}
    for function in find_functions(path):
        if function.name == "__init__":
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AnnAssign) and is_placeholder(node.value, functions):
                    yield from (each.attr for each in list_targets(node) if isinstance(each, ast.Attribute))


def is_placeholder(value: ast.expr | None, functions: set[str]) -> bool:
    if isinstance(value, ast.Name):
        return value.id in functions
    return isinstance(value, ast.Lambda) or (isinstance(value, ast.Constant) and value.value is None)


def find_functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(parse(path)) if isinstance(node, Function))


def find_filled(path: Path) -> Iterator[str]:
    """Yield the attributes that functions set on other objects than their own, and those that setters set."""
    for function in find_functions(path):
        statements = [each for each in function.body if not is_docstring(each)]
        sets_one = function.name != "__init__" and len(statements) == 1
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
                for target in node.targets:
                    is_setter = sets_one and node is statements[0]
                    if isinstance(target, ast.Attribute) and (ast.unparse(target.value) != "self" or is_setter):
                        yield target.attr


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def count_terms() -> Figure:
    lines = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
    terms, heading = [], ""
    for line in lines:
        first = line.split("|")[1].strip() if line.startswith("| ") else ""
        if not first:
            heading = ""
        elif not heading:
            heading = first
        elif heading == "term" and first != "---":
            terms.append(first)
    rule = "rows of the tables of docs/glossary.md that have terms, and so without older words"
    return Figure("glossary terms", len(terms), rule, tuple(terms))


def count_pokes() -> Figure:
    found = tuple(poke for path in list_modules(ROOT / "tests") for poke in find_pokes(path))
    rule = (
        "attributes in tests/ that begin with one underscore, of anything but self or cls, and without the methods of "
        "named tuples"
    )
    return Figure("pokes at private attributes in tests", len(found), rule, found)


def find_pokes(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not is_own and node.attr not in ("_replace", "_asdict", "_fields"):
                yield f"{node.attr} ({shorten(path)})"


def count_turn_modules(*, cpu_cache: bool) -> Figure:
    found = tuple(sorted(shorten(path) for path in trace_turn(ROOT, cpu_cache=cpu_cache)))
    rule = (
        "modules of agentcache/ and tool_runtime/, sim/ apart, with a function that the scheduler calls while a turn "
        "with an evicted segment arrives, is admitted, and ends; not those of the API server"
    )
    return Figure(f"modules of a turn, {'CPU cache' if cpu_cache else 'default'}", len(found), rule, found)


def count_knobs() -> Figure:
    knobs = tuple(name for name, _ in iterate_knobs(AgentCacheConfig))
    return Figure("knobs", len(knobs), "fields of AgentCacheConfig and of the models in it, `tuning` apart", knobs)


def count_all() -> Iterator[Figure]:
    yield count_turn_modules(cpu_cache=False)
    yield count_turn_modules(cpu_cache=True)
    yield count_vllm_importers()
    yield count_replaced()
    yield count_internals()
    yield Figure("lines of engine/", count_lines(list_modules(ENGINE)), "lines of agentcache/engine/**/*.py")
    yield Figure("lines of front_end/", count_lines(list_modules(FRONT_END)), "lines of agentcache/front_end/**/*.py")
    yield Figure("lines of the product", count_lines(list_product()), "lines of **/*.py of the three packages")
    yield Figure("lines of scheduler.py", count_lines([ENGINE / "scheduler.py"]), "lines")
    yield count_none_tests()
    yield count_late_slots()
    yield count_knobs()
    yield count_terms()
    yield count_pokes()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name what was counted")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for figure in count_all():
        print(f"{figure.name:<38}{figure.count:>8,}  {figure.rule}")  # noqa: T201
        for each in figure.found if arguments.list else ():
            print(f"{'':<48}{each}")  # noqa: T201


if __name__ == "__main__":
    main()
