from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentcache.run.folder import divert_output


def write_natively(text: str) -> None:
    """As code that knows nothing of sys.stdout does, here and in another process."""
    os.write(1, f"{text}: stdout\n".encode())
    os.write(2, f"{text}: stderr\n".encode())
    subprocess.run(["sh", "-c", f"echo {text}: child; echo {text}: child stderr >&2"], check=True)


def test_native_output_goes_to_the_log_and_ours_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "engine.log"
    with divert_output(log) as terminal:
        write_natively("inside")
        terminal.write("for the user\n")
    write_natively("outside")
    assert log.read_text().splitlines() == ["inside: stdout", "inside: stderr", "inside: child", "inside: child stderr"]
    out, err = capfd.readouterr()
    assert out == "for the user\noutside: stdout\noutside: child\n"
    assert err == "outside: stderr\noutside: child stderr\n"


def break_off(log: Path) -> None:
    with divert_output(log) as terminal:
        terminal.write("for the user\n")
        raise RuntimeError("broken")


def test_everything_is_as_before_after_an_exception(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = os.listdir("/dev/fd")
    with pytest.raises(RuntimeError, match="broken"):
        break_off(tmp_path / "engine.log")
    assert os.listdir("/dev/fd") == before
    write_natively("outside")
    out, err = capfd.readouterr()
    assert out == "for the user\noutside: stdout\noutside: child\n"
    assert err == "outside: stderr\noutside: child stderr\n"


def test_what_python_holds_back_lands_where_it_was_written(tmp_path: Path) -> None:
    # In a process of its own: pytest's sys.stdout does not go by file descriptor 1.
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from agentcache.run.folder import divert_output\n"
        "sys.stdout.write('before\\n')\n"
        "with divert_output(Path(sys.argv[1])) as terminal:\n"
        "    sys.stdout.write('inside\\n')\n"
        "    sys.stderr.write('inside stderr\\n')\n"
        "    terminal.write('for the user\\n')\n"
        "sys.stdout.write('after\\n')\n"
    )
    log = tmp_path / "engine.log"
    done = subprocess.run([sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("before\nfor the user\nafter\n", "")
    assert sorted(log.read_text().splitlines()) == ["inside", "inside stderr"]
