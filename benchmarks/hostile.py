"""Attacks on the engine core and on the API server's event loop, each at its largest size, beside stock vLLM.

python benchmarks/hostile.py [--part core|server] [--only TEXT] [--bound MS] [--markdown] [--list]

For each attack: the longest step of the engine core, or the longest gap of the event loop, in milliseconds of CPU time,
so that other processes count little. The core is the scheduler without a worker, ours or vLLM's own; the API server
answers HTTP in front of a tiny model on the CPU, ours with --policy agentcache, stock vLLM's without our plug-in. An
attack over the bound is made again, twice at most, and the best counts. Takes about 40 minutes on two idle cores. Exits
with 1 when ours is over the bound, and more than the bound over stock vLLM's.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import hostile_server
import hostile_turns
from hostile_core import Core
from hostile_process import Server, run_server

_TRIES = 3
_HOST_TOKENS = 2_000_000


class Attacked(NamedTuple):
    """What an attack did to a server, and the statuses that it answered with."""

    gap_ms: float
    statuses: frozenset[int]


class Row(NamedTuple):
    """In milliseconds; `stock` is None where vLLM has no such thing. `note` says where the two answer differently."""

    part: str
    attack: str
    ours: float
    stock: float | None = None
    note: str = ""

    def is_over(self, bound: float) -> bool:
        """Tell whether more than the bound is due to us."""
        return self.ours > bound and self.ours - (self.stock or 0.0) > bound


def attack_core(attack: hostile_turns.Attack, bound: float) -> Row:
    stock = _attack_apart(attack, is_stock=True) if attack.has_stock else None
    row = Row("core", attack.name, _attack_apart(attack, is_stock=False), stock)
    for _ in range(_TRIES - 1):
        if row.is_over(bound):
            row = row._replace(ours=min(row.ours, _attack_apart(attack, is_stock=False)))
    return row


def _attack_apart(attack: hostile_turns.Attack, *, is_stock: bool) -> float:
    """Attack in a process of its own: what the garbage collector looks at is that attack's alone."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_attack, (hostile_turns.ATTACKS.index(attack), is_stock))


def _attack(place: int, is_stock: bool) -> float:
    attack = hostile_turns.ATTACKS[place]
    core = Core(is_stock=is_stock, host_tokens=_HOST_TOKENS if attack.needs_host else 0)
    attack.run(core)
    return 1e3 * core.worst_s


async def attack_servers(only: str, bound: float) -> list[Row]:
    """Attack one server after the other: two would share the cores."""
    stock: dict[str, Attacked] = {}
    shared = [attack for attack in hostile_server.ATTACKS if only in attack.name and not attack.is_ours]
    if shared:
        async with run_server(is_stock=True) as server:
            stock = {attack.name: await _attack_server(server, attack, bound) for attack in shared}
    found = []
    for attacks, knobs in _list_servers(only):
        async with hostile_server.run_router() as router, run_server(is_stock=False, knobs=knobs(router)) as server:
            for attack in attacks:
                other = stock.get(attack.name)
                ours = await _attack_server(server, attack, bound + (other.gap_ms if other else 0.0))
                found.append(_compare(attack, ours, other))
    return found


def _compare(attack: hostile_server.Attack, ours: Attacked, stock: Attacked | None) -> Row:
    if stock is None:
        return Row("server", attack.name, ours.gap_ms)
    differ = f"answers {sorted(ours.statuses)}, stock {sorted(stock.statuses)}"
    note = "" if ours.statuses == stock.statuses else differ
    return Row("server", attack.name, ours.gap_ms, stock.gap_ms, note)


def _list_servers(only: str) -> list[tuple[list[hostile_server.Attack], Any]]:
    """List the attacks with the knobs of the server that they are made on, given a router's address."""
    idle = {"max_idle_s": hostile_server.IDLE_S}
    servers: list[tuple[tuple[hostile_server.Attack, ...], Any]] = [
        (hostile_server.ATTACKS, lambda _: {}),
        ((hostile_server.EXPIRY,), lambda _: {"runtime": idle}),
        ((hostile_server.ROUTED_EXPIRY,), lambda router: {"runtime": idle, "router": {"url": router}}),
    ]
    chosen = [([attack for attack in attacks if only in attack.name], knobs) for attacks, knobs in servers]
    return [(attacks, knobs) for attacks, knobs in chosen if attacks]


async def _attack_server(server: Server, attack: hostile_server.Attack, bound: float) -> Attacked:
    gaps: list[float] = []
    server.statuses.clear()
    while not gaps or (min(gaps) > bound and len(gaps) < _TRIES):
        await server.read()
        await attack.run(server)
        gaps.append((await server.read()).gap_ms)
        sys.stderr.write(f"{attack.name}: {gaps[-1]:.1f} ms, answers {sorted(server.statuses)}\n")
    return Attacked(min(gaps), frozenset(server.statuses))


def run_all(part: str | None, only: str, bound: float) -> Iterator[Row]:
    if part != "server":
        for attack in hostile_turns.ATTACKS:
            if only in attack.name:
                yield attack_core(attack, bound)
    if part != "core":
        yield from asyncio.run(attack_servers(only, bound))


def write_row(row: Row, bound: float, *, markdown: bool) -> str:
    cells = ["–" if number is None else f"{number:.1f}" for number in (row.ours, row.stock)]
    over = ", ".join(filter(None, ("over" if row.is_over(bound) else "", row.note)))
    if markdown:
        return f"| {row.part} | {row.attack} | {' | '.join(cells)} | {over} |"
    return f"{row.part:<8}{row.attack:<60}" + "".join(f"{cell:>10}" for cell in cells) + f"  {over}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("core", "server"), help="one of the two alone")
    parser.add_argument("--only", default="", metavar="TEXT", help="attacks with that in their names")
    parser.add_argument("--bound", type=float, default=50.0, metavar="MS", help="milliseconds (default 50)")
    parser.add_argument("--markdown", action="store_true", help="rows of a Markdown table")
    parser.add_argument("--list", action="store_true", help="name the attacks, and make none")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    logging.disable(logging.WARNING)
    of_server = (*hostile_server.ATTACKS, hostile_server.EXPIRY, hostile_server.ROUTED_EXPIRY)
    names = [attack.name for attack in (*hostile_turns.ATTACKS, *of_server)]
    if arguments.list:
        sys.exit("\n".join(names))
    if not any(arguments.only in name for name in names):
        sys.exit(f"--only {arguments.only}: no attack has that in its name; --list names them")
    rows = []
    for row in run_all(arguments.part, arguments.only, arguments.bound):
        rows.append(row)
        print(write_row(row, arguments.bound, markdown=arguments.markdown), flush=True)  # noqa: T201
    sys.exit(any(row.is_over(arguments.bound) for row in rows))


if __name__ == "__main__":
    main()
