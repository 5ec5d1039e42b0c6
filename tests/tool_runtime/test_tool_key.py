import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.shell_line import MAX_COMMANDS, ShellCommand, resolve_words, split_line
from tool_runtime.learning.tool_key import (
    HUMAN,
    MAX_ARGUMENTS,
    MAX_CALLS,
    MAX_COMMAND,
    MAX_NAME,
    ToolKey,
    tool_key,
    tool_keys,
    turn_key,
)


def command_key(command: object) -> str:
    return tool_key("bash", json.dumps({"command": command})).command


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pytest", "pytest"),
        ("cd /repo && pytest -q tests 2>&1 | tail -5", "pytest"),
        ("cd a; ls; cd b; git status && git diff", "ls; git status; git diff"),
        ("sudo -u bob env -i A=b C=d timeout -k 3 5 nice -n 4 make -j4 test", "make test"),
        ("A=1 B='x y' bash -lc 'cd y && make -j4 test; git status'", "make test; git status"),
        ("bash -c \"sh -c 'npm ci'\"", "npm ci"),
        ("eval 'cargo build'", "cargo build"),
        ("for f in *.py; do python3.11 -m pytest $f; done", "pytest"),
        ("if [ -f x ]; then ./gradlew test; else mvn verify; fi", "gradlew test; mvn verify"),
        ("cat > f.py <<'EOF'\nrm -rf build && sleep 9\nEOF\npython f.py", "cat; python f.py"),
        ("cat <<EOF > f && sleep 3\npytest\nEOF\nls", "cat; sleep 3; ls"),
        ("x=$(git rev-parse HEAD) && echo $x", "git rev-parse"),
        ("(cd a; npm ci) || uv run --with x ruff check", "npm ci; ruff"),
        ("find . -name x | xargs -n 1 grep -l foo | sort", "find"),
        ("grep -rn foo .", "grep"),
        ("sleep 30", "sleep 30"),
        ("/usr/bin/python3 -u tools/run.py --fast", "python run.py"),
        ("python -m pip install x", "pip install"),
        ("python -c 'import os; os.system(\"make\")'", "python -c"),
        ("make # pytest && ls", "make"),
        ("echo 'a && make' \"b; make\" c\\;make", "echo"),
        ("make \\\n  test", "make test"),
        ("make\ngit pull", "make; git pull"),
        ("pytest; pytest -x; pytest -v", "pytest"),
        ("2>err.log >out.log make all", "make all"),
        ("diff <(git show a) <(curl b)", "diff; git show; curl"),
        ("git -C", "git"),
        ("timeout 5", "timeout"),
        ("cd foo", "cd"),
        ("", ""),
        ("&& ;; | 17 $((1+2))", ""),
    ],
)
def test_a_line_is_keyed_by_the_commands_that_take_its_time(line: str, expected: str) -> None:
    assert command_key(line) == expected


def test_a_list_of_words_is_one_command() -> None:
    assert command_key(["bash", "-lc", "cd x && make all"]) == "make all"
    assert command_key(["echo", "a && make"]) == "echo"
    assert resolve_words(["sudo", "/bin/ls", "-l"]) == [ShellCommand("ls", ("-l",), piped=False)]
    assert tool_key("exec", '{"cmd": "ls /tmp"}') == ToolKey("exec", "ls")


@pytest.mark.parametrize(
    "arguments", ["", "{", "null", "[1]", '{"command": 3}', '{"command": [1]}', '{"path": "x"}', "[" * 50_000]
)
def test_arguments_that_tell_nothing_give_the_tools_key(arguments: str) -> None:
    assert tool_key("bash", arguments) == ToolKey("bash")


def test_arguments_too_long_to_read_give_the_tools_key() -> None:
    assert command_key("make " + "x" * MAX_ARGUMENTS) == ""


def test_an_unnamed_tool_is_not_a_human() -> None:
    assert tool_key("", "{}") != HUMAN


def test_long_names_keep_apart_within_the_bound() -> None:
    one, other = tool_key("t" * 1000 + "a", "{}"), tool_key("t" * 1000 + "b", "{}")
    assert one != other
    assert max(len(one.tool), len(other.tool)) <= MAX_NAME


def test_half_a_surrogate_pair_from_json_is_no_part_of_a_key() -> None:
    key = tool_key("sur\ud800r", json.dumps({"command": "ma\udcffke it"}))
    assert key == ToolKey("sur?r", "ma?ke")
    assert str(key).encode()


def test_here_documents_do_not_hide_what_follows_them() -> None:
    assert command_key("cat > a <<X\n" + "text of the file\n" * 2000 + "X\npytest") == "cat; pytest"


def test_a_line_of_many_commands_is_cut() -> None:
    assert len(split_line("a;" * 1000)) == MAX_COMMANDS


@given(st.text(alphabet="ab'\"\\ \n;&|()<>`$#=-{}EOF/cdbsh", max_size=200), st.text(max_size=80))
def test_any_text_gives_a_bounded_key(line: str, name: str) -> None:
    key = tool_key(name, json.dumps({"command": line}))
    assert 0 < len(key.tool) <= MAX_NAME
    assert len(key.command) <= MAX_COMMAND
    assert key.coarse == tool_key(name, line)


@given(st.lists(st.sampled_from(["pytest", "ls -l", "git pull", "make all"]), min_size=1, max_size=5))
def test_wrapping_a_line_changes_nothing(commands: list[str]) -> None:
    line = " && ".join(commands)
    assert command_key(f"cd /x && sudo timeout 9 bash -c '{line}'") == command_key(line)


def test_a_turns_key_covers_all_its_calls_in_any_order() -> None:
    make, pull, read = ToolKey("bash", "make"), ToolKey("bash", "git pull"), ToolKey("read")
    assert turn_key([]) == HUMAN
    assert turn_key([make]) == make
    assert turn_key([make, pull]) == turn_key([pull, make, pull]) == ToolKey("bash", "git pull & make")
    assert turn_key([read, make]) == ToolKey("bash+read", "make")
    many = turn_key([ToolKey(f"tool-{number}", "x" * number) for number in range(50)])
    assert len(many.tool) <= MAX_NAME
    assert len(many.command) <= MAX_COMMAND


def test_of_a_turns_many_and_long_calls_some_are_read() -> None:
    long = json.dumps({"command": "pytest " + "x" * 40_000})
    assert tool_keys([("bash", long)] * 3) == [ToolKey("bash", "pytest"), ToolKey("bash"), ToolKey("bash")]
    assert len(tool_keys([("look", "{}")] * 100_000)) == MAX_CALLS
