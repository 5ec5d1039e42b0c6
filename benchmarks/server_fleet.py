"""Servers of one host, and routers in front of their engines, as processes: started together, ended together."""

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
# Each listens at a port of its own.
ROUTERS = ("sticky_least_loaded", "consistent_hash", "cache_aware", "round_robin", PROGRAMS)
_SERVER_PORT, _ROUTER_PORT, _RPC_PORT = 8301, 8501, 29650
_STOP_S = 20


@dataclass
class Fleet:
    """`folder` takes the logs. Each server has all `engines`, GPUs of the kind `gpu`; "cpu" is vLLM's CPU backend."""

    folder: Path
    model: str
    engines: int
    options: Sequence[str]
    gpu: str
    start_s: float = 600.0
    _ports: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def serve(self, policy: str, router: str | None) -> str:
        """Start a server of all engines. Return its address, without waiting for it.

        One of a policy that follows jobs tells `router`, if it is to stand in front of it, of sessions that are over.
        """
        port = _SERVER_PORT + self._ports
        rpc_port = _RPC_PORT + self._ports
        self._ports += 1
        command = ["serve", self.model, "--policy", policy, "--port", str(port), "--forced-replies"]
        command += ["--data-parallel-size", str(self.engines), "--data-parallel-rpc-port", str(rpc_port)]
        if policy != "vllm" and router is not None:
            command += ["--agentcache", f"router.url=http://127.0.0.1:{find_router_port(router)}"]
        given = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.engines)))} if self.gpu != "cpu" else {}
        log = self.folder / f"serve-{policy}.log"
        self._start(["agentcache", *command, *self.options], log, {"VLLM_SERVER_DEV_MODE": "1", **given})
        return f"http://127.0.0.1:{port}"

    def route(self, router: str, url: str, cache_tokens: int | None) -> str:
        """Start a router in front of a server's engines, wait for it, and return its address."""
        port = find_router_port(router)
        how = ["--policy", router]
        if router == PROGRAMS:
            config = json.dumps(describe_programs(self.model, self.gpu, cache_tokens), separators=(",", ":"))
            how = ["--policy", "consistent_hash", "--enable-program-scheduling"]
            how += ["--program-scheduling-config-json", config]
        ports = ["--port", str(port), "--prometheus-port", str(port + 1000)]
        # Each engine is a worker of its own, which requests reach by X-data-parallel-rank.
        engines = ["--intra-node-data-parallel-size", str(self.engines), "--worker-urls", url]
        wait = ["--worker-startup-check-interval", "1"]
        command = ["vllm_router.launch_router", *how, *ports, *wait, *engines]
        self._start(command, self.folder / f"router-{router}-{url.rpartition(':')[2]}.log", {})
        address = f"http://127.0.0.1:{port}"
        self.wait_for([address])
        return address

    def wait_for(self, urls: Sequence[str]) -> None:
        """Wait until all answer. Raises SystemExit when one does not in time, or any process has ended."""
        end_s = time.monotonic() + self.start_s
        for url in urls:
            while not _is_up(url):
                if any(process.poll() is not None for process in self._processes):
                    sys.exit(f"a server or router has ended before it was up; see the logs in {self.folder}")
                if time.monotonic() > end_s:
                    sys.exit(f"{url} is not up after {self.start_s:.0f} s; see the logs in {self.folder}")
                time.sleep(0.5)

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

    def end_router(self) -> None:
        """End the router that was started last, so that another server may have one of its kind."""
        process = self._processes.pop()
        _signal(process, signal.SIGTERM)
        process.wait(_STOP_S)

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


def find_router_port(router: str) -> int:
    """Find where a router of this kind listens."""
    return _ROUTER_PORT + ROUTERS.index(router)


def empty_caches(url: str) -> None:
    """Empty the prefix caches of a server that runs no request."""
    httpx.post(f"{url}/reset_prefix_cache", timeout=60).raise_for_status()


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
