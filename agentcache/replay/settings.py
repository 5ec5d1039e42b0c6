"""Holds the user's settings of a replay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentcache.errors import InputError
from agentcache.models.catalog import check_servable
from agentcache.run.checks import RunSettings, check_kv_tokens

# RFC 9110: a token.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings(RunSettings):
    """One field per option of `agentcache replay`, which documents them."""

    model: str | None
    base_url: str | None
    tokenizer: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    api_key: str
    engine_options: tuple[str, ...]
    kv_tokens: int | None
    request_timeout_s: float

    def check(self) -> None:
        """Raise InputError for settings that cannot work, before anything is loaded."""
        self.check_run()
        if self.base_url is None and not (self.model and self.policies):
            raise InputError("replay: give --model and --policy, or --base-url of a server that runs already")
        if self.base_url is not None and (self.policies or self.engine_options or self.kv_tokens or self.knobs):
            raise InputError("--base-url: the server has its own policy, cache and options; leave ours out")
        if self.base_url is None and self.tokenizer is not None:
            raise InputError(f"--tokenizer {self.tokenizer}: goes with --base-url; an engine here has its model's own")
        if self.base_url is None and self.headers:
            raise InputError(f"--header {next(iter(self.headers))}: goes with --base-url; an engine here needs none")
        if not self.request_timeout_s > 0:
            raise InputError(f"--request-timeout {self.request_timeout_s:g}: give a number of seconds above 0")
        if self.kv_tokens is not None:
            check_kv_tokens(self.kv_tokens)
        if self.base_url is None and self.model:
            check_servable(self.model)


def read_headers(texts: Sequence[str]) -> dict[str, str]:
    """Read headers that are written NAME:VALUE. Raises InputError for one that no HTTP client could send."""
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not (colon and _HEADER_NAME.fullmatch(name.strip()) and value.isascii() and value.strip().isprintable()):
            raise InputError(f"--header {text!r}: write NAME:VALUE, in ASCII, as in X-data-parallel-rank:2")
        headers[name.strip()] = value.strip()
    return headers


def list_seeds(settings: ReplaySettings, seeds: Sequence[int]) -> list[ReplaySettings]:
    """Return the same run with each of the seeds, in folders of their own; each begins with another policy.

    Raises InputError for a seed that is named twice, and where all seeds give the same.
    """
    flag = f"--seeds {' '.join(map(str, seeds))}"
    if len(set(seeds)) < len(seeds):
        raise InputError(f"{flag}: name each once")
    if not settings.jobs.is_drawn:
        raise InputError(f"{flag}: all seeds give {settings.jobs.kind} the same jobs at the same times; give one")
    names = settings.policies
    firsts = [number % len(names) if names else 0 for number in range(len(seeds))]
    return [
        replace(
            settings,
            jobs=replace(settings.jobs, seed=seed),
            out=settings.out / f"seed-{seed}",
            policies=(*names[first:], *names[:first]),
        )
        for seed, first in zip(seeds, firsts, strict=True)
    ]
