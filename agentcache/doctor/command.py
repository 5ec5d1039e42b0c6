"""Runs `agentcache doctor`: reads a server's own counts over HTTP, and prints findings."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import Any

import httpx

from agentcache.doctor.findings import Diagnosis, diagnose
from agentcache.errors import InputError, in_one_line

_MAX_JOBS = 500
_TIMEOUT_S = 30.0
# What users copy from a browser or a client: the server's address is what stands before.
_PATH = re.compile(r"(?<![/:])/(v1|agentcache|agentcache-live)(?=[/?#]|$).*")
# Of a line: its text is set in as far.
_BEGIN = re.compile(r" *(\d+\. )?")


def examine(url: str, api_key: str | None) -> Diagnosis:
    """Examine the server at `url`. Raises InputError when it does not answer, or is not ours."""
    base = _PATH.sub("", url).rstrip("/")
    base = base if "://" in base else f"http://{base}"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT_S) as client:
        engines = _get(client, "/agentcache/state", "engines")
        has_runtime = any(engine.get("runtime") for engine in engines)
        jobs = _get(client, f"/agentcache/jobs?limit={_MAX_JOBS}", "jobs") if has_runtime else []
    return diagnose(engines, jobs)


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print what was found, a finding with its advice below it, and the verdict at the end, broken at words."""
    lines = [*diagnosis.facts]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += ["", f"{number}. {finding.text}", f"   {finding.advice}", *(f"   {line}" for line in finding.example)]
    for sentence in (diagnosis.healthy, diagnosis.verdict):
        lines += ["", sentence] if sentence else []
    width = shutil.get_terminal_size().columns
    for line in lines:
        indent = " " * (len(line) - len(_BEGIN.sub("", line, count=1)))
        broken = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        sys.stdout.write("\n".join(broken) + "\n")


def _get(client: httpx.Client, path: str, field: str) -> list[dict[str, Any]]:
    try:
        answer = client.get(path)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        cause = in_one_line(error) or type(error).__name__
        raise InputError(f"{client.base_url}: no server answers there ({cause}); give http://host:port") from None
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise InputError(f"{client.base_url}: the server wants its key; give --api-key, or set VLLM_API_KEY")
    try:
        found = answer.raise_for_status().json()[field]
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{client.base_url}: GET {path} gave no {field} (status {answer.status_code}); it must be a server started "
            "by agentcache serve, or by vllm serve with VLLM_PLUGINS=agentcache"
        ) from None
    return [dict(each) for each in found]
