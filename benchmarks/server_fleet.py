"""A server of one host's engines, and a router in front of them, as processes: one of each at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from agentcache.policy.presets import find_step_cost
from agentcache.policy.step_cost import StepCost

# vllm-router's program-level scheduling, which is no policy of its own.
PROGRAMS = "programs"
ROUTERS = ("sticky_least_loaded", "consistent_hash", "cache_aware", "round_robin", PROGRAMS)
CPU = "cpu"
_SERVER_PORT, _ROUTER_PORT, _RPC_PORT = 8301, 8501, 29650
_ROUTER_URL = f"http://127.0.0.1:{_ROUTER_PORT}"
_START_S = 600
_STOP_S = 20
_EMPTY_S = 60


@dataclass
class Fleet:
    """`folder` takes the logs. A server has all `engines`, GPUs of the kind `gpu`; "cpu" is vLLM's CPU backend.

    `options` are those of all servers, `own_options` of those of a policy.
    """

    folder: Path
    model: str
    engines: int
    options: Sequence[str]
    own_options: Mapping[str, Sequence[str]]
    gpu: str
    recording: Path = Path()
    _served: tuple[str, bool] | None = None
    _starts: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def serve(self, policy: str, *, is_routed: bool) -> str:
        """Return the address of a server of the policy, without anything in its caches. It writes `recording`.

        One that runs goes on; another ends first. Where policies follow jobs and a router is to stand in front, the
        server tells that of sessions that are over.
        """
        tells_router = is_routed and policy != "vllm"
        url = f"http://127.0.0.1:{_SERVER_PORT + self._starts}"
        if self._served != (policy, tells_router):
            self.close()
            self._starts += 1
            url = self._start_server(policy, tells_router=tells_router)
            self._served = policy, tells_router
        empty_caches(url)
        return url

    def _start_server(self, policy: str, *, tells_router: bool) -> str:
        self.recording = self.folder / f"requests-{policy}-{self._starts}.jsonl"
        port = _SERVER_PORT + self._starts
        command = ["serve", self.model, "--policy", policy, "--port", str(port), "--forced-replies"]
        command += ["--record", str(self.recording), "--data-parallel-size", str(self.engines)]
        command += ["--data-parallel-rpc-port", str(_RPC_PORT + self._starts)]
        if tells_router:
            command += ["--agentcache", f"router.url={_ROUTER_URL}"]
        given = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.engines)))} if self.gpu != CPU else {}
        command += [*self.options, *self.own_options.get(policy, ())]
        log = self.folder / f"serve-{policy}-{self._starts}.log"
        self._start(["agentcache", *command], log, {"VLLM_SERVER_DEV_MODE": "1", **given})
        return self._wait_for(f"http://127.0.0.1:{port}")

    def route(self, router: str, url: str, cache_tokens: int | None) -> str:
        """Start a router in front of a server's engines, wait for it, and return its address."""
        how = ["--policy", router]
        if router == PROGRAMS:
            config = json.dumps(describe_programs(self.model, self.gpu, cache_tokens), separators=(",", ":"))
            how = ["--policy", "consistent_hash", "--enable-program-scheduling"]
            how += ["--program-scheduling-config-json", config]
        ports = ["--port", str(_ROUTER_PORT), "--prometheus-port", str(_ROUTER_PORT + 1000)]
        # Each engine is a worker of its own, which requests reach by X-data-parallel-rank.
        engines = ["--intra-node-data-parallel-size", str(self.engines), "--worker-urls", url]
        wait = ["--worker-startup-check-interval", "1"]
        command = ["vllm_router.launch_router", *how, *ports, *wait, *engines]
        self._start(command, self.folder / f"router-{router}-{self._starts}.log", {})
        return self._wait_for(_ROUTER_URL)

    def end_router(self) -> None:
        """End the router, which was started last."""
        process = self._processes.pop()
        _signal(process, signal.SIGTERM)
        process.wait(_STOP_S)

    def close(self) -> None:
        """End all processes, those of the engines with them."""
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        end_s = time.monotonic() + _STOP_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end_s - time.monotonic()))
            _signal(process, signal.SIGKILL)
        self._processes.clear()
        self._served = None

    def _wait_for(self, url: str) -> str:
        """Return the address once it answers. Raises SystemExit if that takes too long, or any process has ended."""
        end_s = time.monotonic() + _START_S
        while not _is_up(url):
            if any(process.poll() is not None for process in self._processes):
                sys.exit(f"a server or router has ended before it was up; see the logs in {self.folder}")
            if time.monotonic() > end_s:
                sys.exit(f"{url} is not up after {_START_S} s; see the logs in {self.folder}")
            time.sleep(0.5)
        return url

    def _start(self, module: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._processes.append(process)


def empty_caches(url: str) -> None:
    """Empty the caches of a server that runs no request. Raises SystemExit if copies go on for long."""
    end_s = time.monotonic() + _EMPTY_S
    while not _reset(url):
        if time.monotonic() > end_s:
            sys.exit(f"{url}: the caches could not be emptied within {_EMPTY_S} s")
        time.sleep(0.5)


def _reset(url: str) -> bool:
    answer = httpx.post(f"{url}/reset_prefix_cache", params={"reset_external": True}, timeout=60)
    return bool(answer.raise_for_status().json()["success"])


def describe_programs(model: str, gpu: str, cache_tokens: int | None) -> dict[str, Any]:
    """Describe an engine to vllm-router's program-level scheduling, as its calibration does.

    Sessions are known by X-Session-ID. Both of its cost models are fitted to agentcache's measured one.
    """
    cost = find_step_cost(model.removeprefix("shape:"), gpu, 1)
    intercept, linear, quadratic = _fit_prefill(cost)
    fixed, by_request, by_token = _fit_decode(cost)
    return {
        "program_scheduling_enable_key": "auto",
        "global_queue": True,
        "token_capacity_per_target": cache_tokens,
        "prefill_cost_model": {
            "intercept_seconds": intercept,
            "linear_seconds_per_1k_tokens": linear,
            "quadratic_seconds_per_1k_tokens_squared": quadratic,
            "decode_throughput_alpha": 0.15,
        },
        "decode_throughput_model": {
            "fixed_step_seconds": fixed,
            "batch_step_seconds_per_request": by_request,
            "context_step_seconds_per_token": by_token,
        },
    }


def _fit_prefill(cost: StepCost) -> tuple[float, ...]:
    tokens = np.array([1, 2, 4, 8, 16, 32, 64], dtype=float)
    seconds = np.array([cost.prefill_s(int(1000 * each)) for each in tokens])
    return _fit(np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1), seconds)


def _fit_decode(cost: StepCost) -> tuple[float, ...]:
    steps = [(batch, context) for batch in (1, 4, 16, 64) for context in (1_000, 8_000, 32_000)]
    table = np.array([[1.0, batch, batch * context] for batch, context in steps])
    return _fit(table, np.array([cost.decode_s([context] * batch) for batch, context in steps]))


def _fit(table: np.ndarray, seconds: np.ndarray) -> tuple[float, ...]:
    """Fit by relative error; what comes out below zero counts for nothing, as the router demands."""
    factors, *_ = np.linalg.lstsq(table / seconds[:, None], np.ones_like(seconds), rcond=None)
    return tuple(max(float(each), 1e-9) for each in factors)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
