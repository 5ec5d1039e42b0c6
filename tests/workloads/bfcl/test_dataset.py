from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from agentcache.errors import InputError
from workloads.bfcl import dataset
from workloads.bfcl.dataset import read_questions, read_system_message, read_tool_documents, read_tools


def test_questions_are_the_benchmarks_hundred_in_order():
    questions = read_questions()
    assert [question.id for question in questions] == [f"web_search_{number}" for number in range(100)]
    assert "most expensive tea" in questions[0].text


def test_system_message_asks_for_answer_and_context():
    message = read_system_message()
    assert message["role"] == "system"
    assert "'answer'" in message["content"]
    assert "'context'" in message["content"]


def test_tools_are_openai_functions():
    search, fetch = read_tools()
    assert {tool["type"] for tool in (search, fetch)} == {"function"}
    assert search["function"]["name"] == "search_engine_query"
    assert fetch["function"]["name"] == "fetch_url_content"
    assert search["function"]["parameters"]["type"] == "object"
    assert search["function"]["parameters"]["required"] == ["keywords"]
    assert search["function"]["parameters"]["properties"]["max_results"]["type"] == "integer"
    assert fetch["function"]["parameters"]["properties"]["mode"]["enum"] == ["raw", "markdown", "truncate"]
    assert set(fetch["function"]) == {"name", "description", "parameters"}


def test_bfcl_type_names_become_json_schema_at_every_depth():
    types = {"dict": "object", "float": "number", "tuple": "array", "string": "string"}
    inner = {"type": "dict", "properties": {"x": {"type": "float"}}}
    schema = {"type": "dict", "properties": {"points": {"type": "tuple", "items": inner}, "odd": {"type": "whatever"}}}
    assert dataset._to_json_schema(schema, types) == {
        "type": "object",
        "properties": {
            "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
            "odd": {"type": "string"},
        },
    }


def test_no_vendor_sdk_is_imported():
    program = (
        "import sys\n"
        "from workloads.bfcl.dataset import read_questions, read_system_message, read_tools\n"
        "import workloads.bfcl.web_search\n"
        "read_questions(), read_system_message(), read_tools()\n"
        "print('\\n'.join(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(answer.stdout.split())
    assert {name for name in loaded if name.startswith("bfcl_eval.")} == {
        "bfcl_eval.constants",
        "bfcl_eval.constants.default_prompts",
        "bfcl_eval.constants.type_mappings",
    }
    assert not loaded & {"anthropic", "cohere", "openai", "torch", "transformers", "vllm"}


def test_a_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install --no-deps bfcl-eval"):
        read_questions.__wrapped__()
    with pytest.raises(InputError, match="pip install --no-deps bfcl-eval"):
        read_tool_documents.__wrapped__("web_search.json")


def test_a_package_without_v4_files_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(dataset, "_find_package", lambda: tmp_path)
    with pytest.raises(InputError, match=r"without data/BFCL_v4_web_search\.json"):
        read_questions.__wrapped__()
