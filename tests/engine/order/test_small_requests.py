"""Small requests keep their place by arrival: health probes, steps of a beam, guided programs."""

from __future__ import annotations

from collections import Counter
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import Clock
from lone_scheduler import LoneScheduler, make_config, make_scheduler
from steered_scheduler import SEARCH, tokens_of
from tracked_requests import BLOCK
from waiting_requests import make_request, make_waiting

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.order.job_queue import ORDINARY, PINNED, JobQueue
from agentcache.engine.request_state import QueuePriority

STEP_S = 0.02


class Agents:
    """Agents in a loop: each has its next turn as soon as the last has ended, and a new job after four of them."""

    def __init__(self, lone: LoneScheduler, number: int) -> None:
        self.lone = lone
        # By the request, when it came.
        self.asked: dict[str, int] = {}
        self.waits: dict[str, list[int]] = {"agent": [], "probe": []}
        self.now = 0
        for agent in range(number):
            self._ask(agent, 0, tokens_of(agent, 80))

    def probe(self, name: str, prompt: list[int] | None = None, logprobs: int | None = None) -> None:
        name = f"probe.{name}"
        self.asked[name] = self.now
        self.lone.add(name, tokens_of(900 + self.now, 12) if prompt is None else prompt, 1, logprobs=logprobs)

    def step(self) -> Counter[str]:
        """Return how many requests of each kind ended."""
        self.lone.scheduler.clock.now_s += STEP_S
        self.now += 1
        ended = Counter[str]()
        for name, tokens in self.lone.step().finished.items():
            kind, *rest = name.split(".")
            self.waits[kind].append(self.now - self.asked.pop(name))
            ended[kind] += 1
            if kind == "agent":
                agent, turn = map(int, rest)
                prompt = [*tokens, *tokens_of(300 + turn, 10)] if (turn + 1) % 4 else tokens_of(agent + turn, 80)
                self._ask(agent, turn + 1, prompt)
        return ended

    def _ask(self, agent: int, turn: int, prompt: list[int]) -> None:
        name, session = f"agent.{agent}.{turn}", f"{agent}.{turn // 4}"
        self.asked[name] = self.now
        self.lone.add(name, prompt, 40, calls=(SEARCH,), session_id=session)


def make_agents(model_path: str, policy: str, *, seats: int, blocks: int, agents: int, **knobs: Any) -> Agents:
    engine = {"max_num_seqs": seats, "max_num_batched_tokens": 256}
    config = make_config(model_path, SCHEDULER_CLASS, engine, policy=policy, **knobs)
    return Agents(LoneScheduler(make_scheduler(config, blocks, clock=Clock())), agents)


def probe_now_and_then(agents: Agents) -> list[int]:
    for step in range(400):
        if step >= 60 and step % 19 == 0:
            agents.probe(f"{step}")
        agents.step()
    return agents.waits["probe"]


@pytest.mark.parametrize(
    ("seats", "blocks", "agents", "knobs"),
    [
        pytest.param(4, 400, 5, {}, id="seats full"),
        pytest.param(4, 400, 9, {}, id="seats fuller"),
        pytest.param(4, 400, 9, {"pins": {"enabled": False}}, id="seats full, no pins"),
        pytest.param(32, 60, 8, {}, id="cache full"),
        pytest.param(4, 45, 8, {}, id="both"),
    ],
)
def test_a_probe_waits_no_longer_than_with_stock(
    tiny_model_path: str, seats: int, blocks: int, agents: int, knobs: dict[str, Any]
) -> None:
    ours, stock = (
        probe_now_and_then(make_agents(tiny_model_path, policy, seats=seats, blocks=blocks, agents=agents, **knobs))
        for policy in ("agentcache", "vllm")
    )
    assert len(ours) >= len(stock) > 10
    assert mean(ours) <= 1.5 * mean(stock)
    assert max(ours) <= 1.5 * max(stock)


def search_beams(agents: Agents, logprobs: int | None, width: int = 4, length: int = 6) -> int:
    """A beam search: each step asks `width` requests for a token, and the next step needs all of them."""
    for _ in range(60):
        agents.step()
    began = agents.now
    for place in range(length):
        for beam in range(width):
            agents.probe(f"{place}.{beam}", [*tokens_of(700, 40), *tokens_of(800 + beam, place + 1)], logprobs)
        left = width
        while left:
            left -= agents.step()["probe"]
            assert agents.now < 20_000
    return agents.now - began


@pytest.mark.parametrize("logprobs", [None, 8], ids=["of a client", "of vLLM"])
def test_a_beam_search_takes_no_longer_than_with_stock(tiny_model_path: str, logprobs: int | None) -> None:
    ours, stock = (
        search_beams(make_agents(tiny_model_path, policy, seats=4, blocks=400, agents=8), logprobs)
        for policy in ("agentcache", "vllm")
    )
    assert ours <= 1.5 * stock


def count_turns_beside_flood(agents: Agents, flood: int) -> int:
    """A client that splits its work keeps so many small requests waiting. The turns of agents that end meanwhile."""
    for number in range(flood):
        agents.probe(f"{number}")
    for _ in range(300):
        for number in range(agents.step()["probe"]):
            agents.probe(f"{agents.now}.{number}")
    return len(agents.waits["agent"])


def test_a_flood_of_them_delays_jobs_no_more_than_with_stock(tiny_model_path: str) -> None:
    ours, stock = (
        count_turns_beside_flood(make_agents(tiny_model_path, policy, seats=4, blocks=400, agents=5), flood=40)
        for policy in ("agentcache", "vllm")
    )
    assert ours >= 0.9 * stock
    assert stock > 10


@pytest.mark.parametrize(
    ("max_tokens", "blocks", "cached", "is_small"),
    [(1, 0, 0, True), (20, 0, 0, True), (21, 0, 0, False), (1, 1, 0, False), (1, 9, 9, True), (1, 9, 8, False)],
)
def test_what_is_small_goes_by_the_cost_model(max_tokens: int, blocks: int, cached: int, is_small: bool) -> None:
    """A token of the reply takes 0.01 s, a block that is not cached 0.5 s: any request of up to 0.2 s is small."""
    tracked = make_waiting(pinned=6, protect_waiting=True)
    # In two groups of layers each.
    tracked.hits = [
        SimpleNamespace(block_id=0, ref_cnt=0, block_hash_num_tokens=(number + 1) * BLOCK)
        for number in [*range(cached)] * 2
    ]
    request = tracked.ask("a", [1] * blocks * BLOCK, session="s", max_tokens=max_tokens)
    assert tracked.tracker.priority_of(request).by_arrival is is_small
    assert tracked.tracker.find_wait(request, available=0) == (None if is_small else "pins")


def test_small_requests_go_before_what_came_after_them() -> None:
    clock, places = (
        Clock(),
        {
            "old": QueuePriority(PINNED, 0.0, 5.0),
            "small": QueuePriority(ORDINARY, 6.0, 6.0, by_arrival=True),
            "late": QueuePriority(PINNED, 0.0, 7.0),
            "later small": QueuePriority(ORDINARY, 8.0, 8.0, by_arrival=True),
        },
    )
    queue = JobQueue(lambda request: places[request.request_id], 10.0, clock)
    for name in reversed(places):
        queue.add_request(make_request(name))
    assert [queue.pop_request().request_id for _ in places] == list(places)


def test_one_of_no_job_is_put_back_where_it_was() -> None:
    clock = Clock()
    queue = JobQueue(lambda _: QueuePriority(ORDINARY, clock.now_s, clock.now_s, by_arrival=True), 10.0, clock)
    for name in ("skipped", "next"):
        queue.add_request(make_request(name))
        clock.now_s += 1.0
    queue.prepend_request(queue.pop_request())
    assert queue.pop_request().request_id == "skipped"
