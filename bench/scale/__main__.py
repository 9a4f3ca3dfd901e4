"""A large cluster on one real scheduler process: `make bench-scale`, for 1000, 5000, 10,000 nodes.

Real: the scheduler, durable Postgres, Redis, NATS, every message of 10,000 node-agents of 8 cards.
Played: the agents (one process publishes what they publish) and the API server (emulated). Each
size goes through the life of a cluster:

- `register`: an empty ledger, all agents start at once, until every card is in it;
- `start`: a scheduler starts on the full ledger (a pod on every card): time to ready, memory;
- `heartbeats`: each node once in 10 s: the first round, in which everything is compared, and then
  messages, bytes, commits and processor time per second, and how far the consumer is behind;
- `filter`, `bind`: beside the heartbeats, with the names of all nodes, and with those that
  kube-scheduler looks at.

Prints a table with one column per size and writes bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson

from bench.filter.cluster import fill_api_server, fill_ledger, names_of, placed_pods
from bench.filter.figures import cpu_s, fdatasync_ms, machine, resident_mb
from bench.filter.load import new_pods
from bench.filter.objects import CARDS
from bench.filter.system import CHILD, Bench, api_server, end_when_asked, stop, wait_until_quiet
from bench.scale import asking, traffic
from bench.scale.stages import (
    HELD,
    Servers,
    cards_known,
    grant_placed,
    scheduler,
    servers,
    wait_for,
)

RESULTS = Path(__file__).resolve().parents[1] / "results" / "scale.json"
SIZES = (1000, 5000, 10_000)
REGISTER_S = 900.0
STEADY_S = 40.0
ROUND_S = 10.0
Row = dict[str, Any]


def measure(nodes: int, runs: int, *, register: bool = True) -> Row:
    """One column. Without `register` the database fills the ledger itself."""
    with servers() as found:
        row: Row = {"nodes": nodes, "cards": nodes * CARDS, "pods": nodes * HELD.pods_per_node}
        row["fsync_ms"] = round(fdatasync_ms(found.folder), 3)
        placed = placed_pods(nodes, HELD)
        if register:
            row["register"] = _registered(found, nodes)
            asyncio.run(grant_placed(found.dsn, placed))
        else:
            asyncio.run(fill_ledger(found.dsn, nodes, HELD, placed))
        asyncio.run(fill_api_server(found.folder / "full" / "apiserver", nodes, placed))
        del placed
        row |= _lived(found, nodes, runs)
        return row


def _registered(found: Servers, nodes: int) -> Row:
    folder = found.folder / "empty"
    asyncio.run(fill_api_server(folder / "apiserver", nodes, []))
    with (
        api_server(folder, found.made) as config,
        scheduler(found, config, found.folder / "first.log") as start,
    ):
        wait_until_quiet(start.pid)
        before = traffic.read(found, start.pid)
        subprocess.run(_agents(found, nodes, "--at-once"), check=True, stdout=subprocess.DEVNULL)
        took_s = wait_for(partial(cards_known, found.dsn), nodes * CARDS, REGISTER_S)
        spent = traffic.between(before, traffic.read(found, start.pid))
        wait_until_quiet(start.pid)
        return {
            "seconds": round(took_s, 1),
            "nodes_per_s": round(nodes / max(took_s, 0.001)),
            "scheduler_cpu_s": round(spent["scheduler_cores"] * spent["seconds"], 1),
            "rss_mb": round(resident_mb(start.pid)),
        }


def _lived(found: Servers, nodes: int, runs: int) -> Row:
    with ExitStack() as stack:
        config = stack.enter_context(api_server(found.folder / "full", found.made))
        start = stack.enter_context(scheduler(found, config, found.folder / "second.log"))
        row: Row = {
            "start": {
                "ready_s": start.ready_s,
                "until_s": start.missing_s,
                "cpu_s": round(cpu_s(start.pid), 1),
                "rss_mb": round(resident_mb(start.pid)),
            }
        }
        wait_until_quiet(start.pid)
        row["start"]["rss_settled_mb"] = round(resident_mb(start.pid))
        sent = stack.enter_context(_beating(found, nodes))
        row["heartbeats"] = _heard(found, start.pid, sent)
        row |= _asked(found, start.port, config, nodes, runs, start.pid)
        row["rss_end_mb"] = round(resident_mb(start.pid))
        return row


def _heard(found: Servers, pid: int, sent: Path) -> Row:
    before = traffic.read(found, pid)
    time.sleep(2 * ROUND_S)
    first = traffic.between(before, traffic.read(found, pid))
    behind = traffic.backlog(found)
    before, began = traffic.read(found, pid), _last(sent)
    time.sleep(STEADY_S)
    steady = traffic.between(before, traffic.read(found, pid))
    ended = _last(sent)
    heard, age_s = asyncio.run(traffic.last_heard(found.dsn))
    return {
        "sent_per_s": round((ended["messages"] - began["messages"]) / steady["seconds"]),
        "sent_kb_per_s": round((ended["bytes"] - began["bytes"]) / steady["seconds"] / 1000),
        "player_late_s": ended["late_s"],
        "first_rounds": first | {"pending": behind.pending},
        "steady": steady | {"pending": traffic.backlog(found).pending},
        "heard_nodes": heard,
        "oldest_s": round(age_s, 1),
    }


def _asked(found: Servers, port: int, config: Path, nodes: int, runs: int, pid: int) -> Row:
    # What creates pods there needs to know the API server alone.
    pods = new_pods(cast(Bench, SimpleNamespace(kubeconfig=config)), 4 * runs + 50)
    names = names_of(nodes)
    whole = orjson.dumps(names)
    warm, mine, looked, crowd, more = (
        pods[:50],
        *(pods[50 + part * runs : 50 + (part + 1) * runs] for part in range(4)),
    )
    asking.filtered(port, warm, [whole] * len(warm))
    all_ms, chosen = asking.filtered(port, mine, [whole] * runs)
    some_ms, more_chosen = asking.filtered(port, looked, asking.windows(names, runs))
    per_s, crowd_chosen = asking.at_once(port, crowd, [whole] * runs)
    looked_per_s, last_chosen = asking.at_once(port, more, asking.windows(names, runs))
    binds_per_s, bind_ms = asking.bound(
        port,
        [*mine, *looked, *crowd, *more],
        [*chosen, *more_chosen, *crowd_chosen, *last_chosen],
    )
    return {
        "filter": {
            "body_kb": round(len(asking.body(pods[0], whole)) / 1000),
            "all": asking.summary(all_ms) | {"per_s_8": round(per_s)},
            "looked_at": asking.summary(some_ms) | {"per_s_8": round(looked_per_s)},
        },
        "bind": asking.summary(bind_ms) | {"per_s_8": round(binds_per_s)},
    }


def _agents(found: Servers, nodes: int, *more: str) -> list[str]:
    module = [sys.executable, "-m", "bench.scale.agents"]
    return [*CHILD, *module, "--nats", found.nats_url, "--nodes", str(nodes), *more]


@contextmanager
def _beating(found: Servers, nodes: int) -> Iterator[Path]:
    """All agents, until the end of the block; yields the file with what they have sent."""
    path = found.folder / "agents.jsonl"
    with path.open("w") as output:
        process = subprocess.Popen(_agents(found, nodes), stdout=output, env=os.environ)
    try:
        while not path.read_text().count("\n"):
            if process.poll() is not None:
                raise SystemExit("the played agents ended")
            time.sleep(0.1)
        yield path
    finally:
        stop(process)


def _last(path: Path) -> dict[str, float]:
    line = path.read_text().rpartition("\n")[0].rpartition("\n")[2]
    return cast(dict[str, float], json.loads(line))


def report(rows: list[Row]) -> None:
    """One column per size."""
    flat = [_flat(row) for row in rows]
    for name in flat[0]:
        print(f"{name:>38}  " + "  ".join(f"{row.get(name, '')!s:>9}" for row in flat))


def _flat(row: Row, prefix: str = "") -> Row:
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def main() -> None:
    """Measures, prints the table and writes the results."""
    end_when_asked()
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="decisions per way of asking")
    parser.add_argument(
        "--sizes", type=lambda text: [int(part) for part in text.split(",")], default=list(SIZES)
    )
    parser.add_argument("--filled", action="store_true", help="leave `register` out")
    given = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    rows = []
    for nodes in given.sizes:
        began_s, load = time.monotonic(), os.getloadavg()[0]
        row = measure(nodes, given.runs, register=not given.filled)
        rows.append({**row, "load": round(load, 1)})
        print(json.dumps(rows[-1]), flush=True)
        print(f"{nodes} nodes: {time.monotonic() - began_s:.0f} s", flush=True)
    report(rows)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
