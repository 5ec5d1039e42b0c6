"""Describes the server under test: where it is, what it serves, what its metrics say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import httpx
from openai import APIError, OpenAI
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.errors import InputError, ServerError, in_one_line
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import ServerTokenizer
from tool_runtime.agent.job import Turn

_PREEMPTIONS = "vllm:num_preemptions"
_CACHE = "vllm:cache_config_info"
_EVICTIONS = "agentcache:evicted_blocks"
_HOST_BLOCKS = "agentcache:host_blocks"
_WAITS = "agentcache:turn_wait_seconds"
# Of vLLM's counts by `source`, which place each is. The second splits what connectors bring, and lacks what ours does.
_PLACES = {
    "vllm:prompt_tokens_by_source": {"local_cache_hit": "gpu", "external_kv_transfer": "host"},
    "vllm:prompt_tokens_cached_by_source": {"disk": "disk"},
}


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The size of the engine's KV cache, its preemptions so far, blocks that lost reusable KV, by cause, and hits.

    None if the server does not say: evictions are counted by agentcache's own block queue. `hit_tokens` are by place,
    `waits_s` what requests waited before they ran, by reason; `has_host_cache` where agentcache steers one in the
    host's memory.
    """

    block_size: int | None
    cache_tokens: int | None
    preemptions: int | None
    evictions: dict[str, int] | None = None
    hit_tokens: dict[str, int] | None = None
    waits_s: dict[str, float] | None = None
    has_host_cache: bool = False

    def count_since(self, before: CacheFacts) -> CacheFacts:
        """Return the same with counts since `before` was read."""
        preemptions = evictions = hit_tokens = waits_s = None
        if self.preemptions is not None and before.preemptions is not None:
            preemptions = self.preemptions - before.preemptions
        if self.evictions is not None and before.evictions is not None:
            evictions = {cause: blocks - before.evictions.get(cause, 0) for cause, blocks in self.evictions.items()}
        if self.hit_tokens is not None and before.hit_tokens is not None:
            hit_tokens = {place: tokens - before.hit_tokens.get(place, 0) for place, tokens in self.hit_tokens.items()}
            # Another cache of vLLM's is known by what came from it.
            if not self.has_host_cache and not any(hit_tokens.get(place) for place in ("host", "disk")):
                hit_tokens = None
        if self.waits_s is not None:
            earlier_s = before.waits_s or {}
            waits_s = {reason: seconds - earlier_s.get(reason, 0.0) for reason, seconds in self.waits_s.items()}
        return replace(self, preemptions=preemptions, evictions=evictions, hit_tokens=hit_tokens, waits_s=waits_s)


class Endpoint:
    """A vLLM server's OpenAI API under `base_url`, which ends in /v1. `headers` go along with each request."""

    def __init__(
        self, base_url: str, api_key: str, model: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Connect; `model` None takes the first that the server lists. Raises InputError if no server answers."""
        self.base_url = base_url.rstrip("/")
        self.api_key = api_key
        self.headers = dict(headers or {})
        if not self.base_url.endswith("/v1"):
            raise InputError(f"--base-url {base_url}: must end in /v1, as in http://host:8000/v1")
        root = self.base_url.removesuffix("/v1")
        authorized = {"Authorization": f"Bearer {api_key}", **self.headers}
        self._http = httpx.Client(base_url=root, headers=authorized, timeout=120)
        self.model, self.max_tokens = self._find_model(model)

    @property
    def tokenizer(self) -> ServerTokenizer:
        """Return a tokenizer that asks the server."""
        return ServerTokenizer(self._http, self.model)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def check_forced_reply(self) -> None:
        """Ask for a forced reply, which also warms the engine. Raises InputError if the server does not follow it."""
        reply = ReplyEncoder(self.tokenizer).encode(Turn("Ready."))
        remedy = "start it with `agentcache serve MODEL --forced-replies`"
        try:
            with OpenAI(
                base_url=self.base_url, api_key=self.api_key, default_headers=self.headers, max_retries=0
            ) as client:
                answer = client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": "Are you ready?"}],
                    max_completion_tokens=len(reply),
                    extra_body={"vllm_xargs": {REPLY_ARGUMENT: reply}, "return_token_ids": True},
                )
        except APIError as error:
            raise InputError(f"{self.base_url}: {error.message}; {remedy}") from None
        said = (answer.choices[0].model_extra or {}).get("token_ids")
        if said != reply:
            raise InputError(f"{self.base_url}: the server does not follow recorded replies; {remedy}")

    def read_cache_facts(self) -> CacheFacts:
        """Read `/metrics`. Raises ServerError if the server is gone."""
        try:
            response = self._http.get("/metrics")
        except httpx.HTTPError as error:
            raise ServerError(f"{self.base_url}: the server is gone ({error})") from None
        if response.status_code != httpx.codes.OK:
            return CacheFacts(None, None, None)
        return parse_cache_facts(text_string_to_metric_families(response.text))

    def _find_model(self, wanted: str | None) -> tuple[str, int | None]:
        try:
            response = self._http.get("/v1/models")
            response.raise_for_status()
            served = {entry["id"]: entry.get("max_model_len") for entry in response.json()["data"]}
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            cause = in_one_line(error)
            raise InputError(f"--base-url {self.base_url}: no OpenAI server answers there ({cause})") from None
        name = wanted or next(iter(served), "")
        if name not in served:
            raise InputError(f"--model {name}: {self.base_url} serves {', '.join(served) or 'no model'}")
        return name, served[name]


def parse_cache_facts(families: Iterable[Metric]) -> CacheFacts:
    """Take block size and count from the labels of vLLM's info metric, and add up counts over engines."""
    block_size = cache_tokens = preemptions = None
    has_host_cache = False
    waits_s: dict[str, float] = {}
    evictions: Counter[str] = Counter()
    prompt_tokens: Counter[str] = Counter()
    for family in families:
        if family.name == _CACHE and family.samples:
            labels = family.samples[0].labels
            block_size = int(labels["block_size"])
            # One block is vLLM's placeholder and never holds KV.
            cache_tokens = (int(labels["num_gpu_blocks"]) - 1) * block_size
        elif family.name == _PREEMPTIONS:
            preemptions = int(sum(s.value for s in family.samples if s.name.endswith("_total")))
        elif family.name == _EVICTIONS:
            for sample in family.samples:
                evictions[sample.labels["cause"]] += int(sample.value)
        elif family.name == _WAITS:
            waits_s = _add_waits(family)
        elif family.name == _HOST_BLOCKS:
            has_host_cache = bool(family.samples)
        elif family.name in _PLACES:
            prompt_tokens.update(_count_by_source(family))
    return CacheFacts(
        block_size,
        cache_tokens,
        preemptions,
        dict(evictions) or None,
        _find_hits(prompt_tokens),
        waits_s or None,
        has_host_cache,
    )


def _add_waits(family: Metric) -> dict[str, float]:
    """Add up the waits of all engines by reason, whose label has underscores for spaces."""
    waits_s: dict[str, float] = {}
    for sample in family.samples:
        if sample.name.endswith("_sum"):
            reason = sample.labels["reason"].replace("_", " ")
            waits_s[reason] = waits_s.get(reason, 0.0) + sample.value
    return waits_s


def _count_by_source(family: Metric) -> dict[str, int]:
    """Count prompt tokens by place, over all engines; those of the places that are asked for."""
    tokens: Counter[str] = Counter()
    for sample in family.samples:
        if sample.name.endswith("_total") and (place := _PLACES[family.name].get(sample.labels["source"])):
            tokens[place] += int(sample.value)
    return tokens


def _find_hits(tokens: Mapping[str, int]) -> dict[str, int] | None:
    """Take from what connectors have brought what they read from disk; the two metrics count at different times."""
    hits = dict(tokens)
    if disk := hits.pop("disk", 0):
        hits |= {"host": max(0, hits.get("host", 0) - disk), "disk": disk}
    return hits or None
