"""Provides the server of a replay: an engine of its own for one policy after another, or a running server."""

from __future__ import annotations

import asyncio
import logging
import secrets
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentcache.config_reader import CONFIG_KEY
from agentcache.errors import InputError, ServerError
from agentcache.jobs.tokenizer import LocalTokenizer, Tokenizer
from agentcache.models.catalog import Model, is_made_here, resolve_model
from agentcache.replay.endpoint import Endpoint
from agentcache.replay.settings import ReplaySettings
from tool_runtime.agent.job import Message

if TYPE_CHECKING:
    from agentcache.engine.vllm.base import VllmConfig
    from agentcache.server.embedded import EmbeddedServer

logger = logging.getLogger("vllm.agentcache")

CPU_BACKEND = "CPU backend"
# The CPU kernels want multiples of 32; 16 is vLLM's own on a GPU.
_CPU_BLOCK_SIZE = 32
_GPU_BLOCK_SIZE = 16
_SHUTDOWN_S = 10
_RANDOM_WEIGHTS_NOTE = (
    "The model's weights are random: time does not depend on their values, and every reply is the recorded one."
)
# What tells tokenizers and templates apart.
_CHAT: tuple[Message, ...] = (
    {"role": "system", "content": "Answer in one word, 1 of 10,000."},
    {"role": "user", "content": "Which city has the northernmost tram? Trondheim, naïvely."},
    {"role": "assistant", "content": "Trondheim."},
)
_SHARED_ENGINE_NOTE = "A policy without an engine start-up ran on the engine of the one before it, its cache empty."


@dataclass(frozen=True, slots=True)
class Target:
    """A running server. What only an embedded engine knows of itself is None for other servers.

    `startup_s` is also None if the engine has served another policy before. `gpus` is 1 for a server that is not ours.
    `session_prefix` begins the sessions' names where the server may know others by their jobs' ids.
    """

    endpoint: Endpoint
    startup_s: float | None = None
    model_runner: Literal["V1", "V2"] | None = None
    gpus: int = 1
    session_prefix: str = ""


class ExternalBackend:
    """A server that the user runs. It has its own policy, so there is one run, named "server".

    Of this and the other backend None means "not known", or "no limit".
    """

    policies: tuple[str, ...] = ("server",)
    notes: tuple[str, ...] = ()

    def __init__(self, settings: ReplaySettings) -> None:
        """Connect.

        Raises InputError if no server answers, if the server does not follow recorded replies, or for another tokenizer
        than its own.
        """
        assert settings.base_url is not None
        self._endpoint = Endpoint(settings.base_url, settings.api_key, settings.model, settings.headers)
        self._endpoint.check_forced_reply()
        self.tokenizer: Tokenizer = self._endpoint.tokenizer
        if settings.tokenizer is not None:
            self.tokenizer = _load_tokenizer(settings.tokenizer, self._endpoint)
        self.model = self._endpoint.model
        self.max_tokens = self._endpoint.max_tokens
        self.cache_tokens = self._endpoint.read_cache_facts().cache_tokens
        self.device = f"the server at {settings.base_url}"

    @asynccontextmanager
    async def open(self, policy: str) -> AsyncIterator[Target]:  # noqa: ARG002 (the server has its own)
        """Yield the user's server, whatever the policy."""
        # Other replays may run against it, or have done so.
        yield Target(self._endpoint, session_prefix=f"{secrets.token_hex(4)}-")

    async def aclose(self) -> None:
        """Do nothing: the server is the user's."""


class EmbeddedBackend:
    """An engine in this process. Policies differ in our configuration alone, so one engine runs them in turn.

    Each starts with an empty cache, and with a fresh engine if the last policy broke it.
    """

    def __init__(self, settings: ReplaySettings) -> None:
        """Make or find the model and let vLLM check its configuration, without starting it. Raises InputError."""
        from agentcache.engine.vllm.compat import check_vllm

        check_vllm()
        from agentcache.engine.vllm.base import current_platform
        from agentcache.server.arguments import make_engine_config

        self.policies = settings.policies
        self.notes: tuple[str, ...] = (
            *([_RANDOM_WEIGHTS_NOTE] if is_made_here(settings.model or "") else []),
            *([_SHARED_ENGINE_NOTE] if len(settings.policies) > 1 else []),
        )
        self.model = settings.model or ""
        self._knobs = settings.knobs
        model = resolve_model(self.model)
        tokenizer = LocalTokenizer(model.path)
        self.tokenizer: Tokenizer = tokenizer
        on_cpu = current_platform.is_cpu()
        self.device = CPU_BACKEND if on_cpu else str(current_platform.get_device_name())
        self._options = _engine_options(settings, model, tokenizer, _CPU_BLOCK_SIZE if on_cpu else _GPU_BLOCK_SIZE)
        self.cache_tokens = settings.kv_tokens
        self.max_tokens: int | None = None
        self._blocks: int | None = None
        config = make_engine_config(self._arguments(settings.policies[0]))
        self.max_tokens = config.model_config.max_model_len
        if self.cache_tokens is not None:
            if self.cache_tokens < self.max_tokens:
                # Requests are shortened to the cache, and blocks are counted in requests of full length.
                config = make_engine_config(self._arguments(settings.policies[0]))
            self._size_cache(config, self.cache_tokens)
        self._server: EmbeddedServer | None = None
        self._resources = AsyncExitStack()

    def _size_cache(self, config: VllmConfig, tokens: int) -> None:
        """Find how many blocks hold so many tokens. Raises InputError where the config does not tell."""
        from agentcache.run.layer_groups import count_blocks, make_layer_groups

        try:
            groups = make_layer_groups(config)
        except InputError as error:
            raise InputError(
                f"--kv-tokens {tokens}: {error}; leave it out, or give blocks behind the options, as in "
                "`-- --num-gpu-blocks-override 4000`"
            ) from None
        # Recurrent layers make it longer.
        block_size = config.cache_config.block_size
        self.cache_tokens = tokens // block_size * block_size
        # One block more than the tokens need: vLLM keeps one as a placeholder.
        self._blocks = count_blocks(config, groups, self.cache_tokens) + 1

    @asynccontextmanager
    async def open(self, policy: str) -> AsyncIterator[Target]:
        """Start the engine, or give it the policy if it runs; yield it warmed up. Raises ServerError."""
        arguments = self._arguments(policy)
        try:
            startup_s = None
            if (server := await self._switch(arguments)) is None:
                server = await self._start(arguments)
                startup_s = server.startup_s
            runner: Literal["V1", "V2"] = "V2" if server.vllm_config.use_v2_model_runner else "V1"
            with closing(await asyncio.to_thread(Endpoint, f"{server.url}/v1", "embedded")) as endpoint:
                await asyncio.to_thread(_warm_up, endpoint)
                parallel = server.vllm_config.parallel_config
                yield Target(endpoint, startup_s, runner, parallel.world_size * parallel.data_parallel_size)
        except BaseException:
            # Whatever went wrong must not affect the next policy.
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Stop the engine."""
        self._server = None
        await self._resources.aclose()

    async def _switch(self, arguments: Namespace) -> EmbeddedServer | None:
        """Switch the running server to the policy of `arguments`; return None if there is no server that can."""
        if self._server is None:
            return None
        try:
            await self._server.use_policy(arguments.additional_config[CONFIG_KEY])
        except ServerError as error:
            logger.warning("A fresh engine is started for the next policy: %s", error)
            await self.aclose()
        return self._server

    async def _start(self, arguments: Namespace) -> EmbeddedServer:
        from agentcache.server.embedded import run_embedded_server

        self._server = await self._resources.enter_async_context(run_embedded_server(arguments))
        return self._server

    def _arguments(self, policy: str) -> Namespace:
        from agentcache.server.arguments import build_arguments

        options = list(self._options)
        if self._blocks is not None:
            options += ["--num-gpu-blocks-override", str(self._blocks)]
        if self.cache_tokens is not None and self.max_tokens is not None and self.cache_tokens < self.max_tokens:
            # vLLM refuses a cache that cannot hold one request of the model's full length.
            options += ["--max-model-len", str(self.cache_tokens)]
        return build_arguments(self.model, options, policy=policy, forced_replies=True, knobs=self._knobs)


Backend = ExternalBackend | EmbeddedBackend


def _load_tokenizer(model: str, endpoint: Endpoint) -> LocalTokenizer:
    """Load the tokenizer of `model`. Raises InputError if it writes another chat than the server's."""
    tokenizer = LocalTokenizer(resolve_model(model).path)
    if any(
        tokenizer.render(_CHAT, for_reply=for_reply) != endpoint.tokenizer.render(_CHAT, for_reply=for_reply)
        for for_reply in (False, True)
    ):
        raise InputError(f"--tokenizer {model}: the server at {endpoint.base_url} has another tokenizer; leave it out")
    return tokenizer


def _warm_up(endpoint: Endpoint) -> None:
    """Warm up the engine. Raises ServerError: it is our own, so the user's input is not at fault."""
    try:
        endpoint.check_forced_reply()
    except InputError as error:
        raise ServerError(f"the engine does not serve: {error}") from error


def _engine_options(
    settings: ReplaySettings, model: Model, tokenizer: LocalTokenizer, block_size: int
) -> tuple[str, ...]:
    """Return vLLM's options; the user's come last and win. Raises InputError if the tool-call format is unknown."""
    options = [
        *("--seed", str(settings.jobs.seed)),
        *("--block-size", str(block_size)),
        *("--shutdown-timeout", str(_SHUTDOWN_S)),
        "--no-use-tqdm-on-load",
    ]
    if not any(option.startswith("--tool-call-parser") for option in (*model.options, *settings.engine_options)):
        options += ["--enable-auto-tool-choice", "--tool-call-parser", _guess_parser(settings, tokenizer)]
    return (*options, *settings.engine_options)


def _guess_parser(settings: ReplaySettings, tokenizer: LocalTokenizer) -> str:
    if "<tool_call>" in tokenizer.chat_template:
        return "hermes"
    raise InputError(
        f"--model {settings.model}: its tool-call format is not Hermes; "
        "name vLLM's parser for it behind the options, as in `-- --tool-call-parser llama3_json`"
    )
