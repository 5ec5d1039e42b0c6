import ast
from pathlib import Path

import pytest

MAX_LENGTH = 60
FILES = sorted(Path(__file__).parent.rglob("*.py"))


def find_tests(source: str) -> list[str]:
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [function.name for function in functions if function.name.startswith("test_")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_are_short_and_none_is_defined_twice(path: Path) -> None:
    names = find_tests(path.read_text(encoding="utf-8"))
    assert [name for name in names if len(name) > MAX_LENGTH] == []
    # pytest would run the last of them alone, and say nothing.
    assert sorted(names) == sorted(set(names))


def test_all_test_functions_are_found() -> None:
    source = "def test_a(): ...\n@mark\nasync def test_b(): ...\nif x:\n    def test_a(): ...\ndef make_test_c(): ..."
    assert sorted(find_tests(source)) == ["test_a", "test_a", "test_b"]
    assert {"conftest.py", "test_names.py", "evictor_conformance.py"} <= {path.name for path in FILES}
