"""Checks that a command can write to the folder that --out names, and that it may."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from agentcache.errors import InputError


def check_writable(out: Path) -> None:
    """Raise InputError when the folder cannot be made, or nothing can be written to it. Leaves nothing behind.

    By making a folder there: permission bits alone do not tell of read-only and special file systems.
    """
    try:
        nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise InputError(f"--out {out}: {nearest} is a file; give a folder")
        with tempfile.TemporaryDirectory(prefix=".agentcache-", dir=nearest):
            pass
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); give another folder") from error


def check_free(out: Path, files: Iterable[str], what: str, *, overwrite: bool) -> None:
    """Raise InputError when the folder cannot be written to, or holds any of the files of another result.

    `what` it is, a run or a plan, say, stands in the message. With `overwrite` the files may be there.
    """
    check_writable(out)
    if not overwrite and any((out / name).exists() for name in files):
        raise InputError(f"--out {out}: holds another {what}; give another folder, or --overwrite to replace it")
