"""What is private in vLLM and used here is on one list, which is checked when an engine starts."""

from __future__ import annotations

import ast
from itertools import chain
from pathlib import Path

import agentcache
from agentcache.engine.vllm.internals import ATTRIBUTES, SIGNATURES

PACKAGE = Path(agentcache.__file__).parent
# Of our own classes in other files, and of the standard library's named tuples.
OURS = {"_asdict", "_fields", "_replace"}
# They are given the name of what they replace.
REPLACING = {"replace", "wrap_method"}
LISTED = {name.rpartition(".")[2] for name in SIGNATURES} | set(chain.from_iterable(ATTRIBUTES.values()))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def find_foreign(tree: ast.Module) -> set[str]:
    """Private names that the module uses and none of its classes or functions brings."""
    used: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            (own if is_self and isinstance(node.ctx, ast.Store) else used).add(node.attr)
            if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
                # super()._method(): ours overrides vLLM's.
                used.add(f"super().{node.attr}")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("_block"):
            used.add(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REPLACING:
            used.update(f"{each.value}" for each in node.args if isinstance(each, ast.Constant))
    overridden = {name.removeprefix("super().") for name in used if name.startswith("super().")}
    return {name for name in used if is_private(name) and name not in own} | overridden


def test_private_attributes_of_vllm_are_listed() -> None:
    rooms = ("engine", "front_end", "server", "sim", "profile")
    modules = [path for room in rooms for path in (PACKAGE / room).rglob("*.py")]
    assert len(modules) > 60
    foreign = {name: path.name for path in modules for name in find_foreign(ast.parse(path.read_text()))}
    ours = {name for name in foreign if name in OURS}
    assert {"_cache", "_get_session_id", "_free_request_blocks"} <= set(foreign)
    assert set(foreign) - ours <= LISTED, foreign
    assert set(filter(is_private, LISTED)) <= set(foreign), "the list has names that are not used"
