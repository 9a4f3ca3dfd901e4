"""/filter over HTTP on a real scheduler process, durable Postgres, Redis, NATS and an API server.

Each size: a cluster with placed pods, one client in a row (p50, p99), then eight at once
(decisions/s). Everything that production does is on: fsync and synchronous_commit, traces to a
file, decision records, outbox to NATS, pod events. The API server is the emulator; only the pods
that are asked for do not exist there, which /filter does not notice. `cpu_ms` is the scheduler's
CPU time per decision with all its background work; on a busy machine it says more than the
latencies. Prints the table with the budget of architecture section 7 and writes
bench/results/filter.json.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import platform
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from hamicommon.db import schema
from hamicommon.k8s.client import open_kube_api
from hamicommon.settings import PostgresSettings
from hamictl.local.credentials import Credentials, ensure_credentials
from hamictl.servers import nats, postgres, valkey
from hamictl.servers.kubeconfig import write_kubeconfig
from hamictl.servers.plan import ServerPlan
from hamictl.servers.ports import free_port
from hamictl.servers.processes import running

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "filter.json"
CARDS = 8
MEMORY_MIB = 81_920
PLACED_PODS = {100: 24, 400: 16, 1000: 16}
"""Nodes -> placed pods per node, as HAMi was measured."""
BUDGET_MS = {100: 4.0, 400: 5.0, 1000: 6.0}
"""Nodes -> budget of p50 in ms, plus one fsync."""
BUDGET_PER_S = 200
CLIENTS = 8
WARM_UP = 50
READY_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A running scheduler with a full ledger."""

    port: int
    pid: int
    nodes: list[str]


def node_name(number: int) -> str:
    """Names as long as usual ones."""
    return f"gpu-node-{number:04d}.bench"


@contextmanager
def system(nodes: int) -> Iterator[Bench]:
    """Servers, API server, ledger and scheduler for one size."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hami-bench-")))
        folder.chmod(0o755)

        def start(plan: ServerPlan) -> Any:
            return stack.enter_context(running(plan, die_with_parent=True)).value

        dsn = start(postgres.prepare(folder / "postgres", durable=True)).url
        redis_url = start(valkey.prepare(folder / "redis")).url
        nats_url = start(nats.prepare(folder / "nats")).url
        schema.upgrade(PostgresSettings(dsn=dsn), ROOT / "migrations")
        made = ensure_credentials(folder / "credentials", serving=("apiserver",))
        config = stack.enter_context(api_server(folder, made))
        names = [node_name(number) for number in range(nodes)]
        asyncio.run(fill(dsn, config, names, PLACED_PODS[nodes]))
        env = {
            **os.environ,
            "HAMI_POSTGRES_DSN": dsn,
            "HAMI_REDIS_URL": redis_url,
            "HAMI_NATS_URL": nats_url,
            "KUBECONFIG": str(config),
            "HAMI_TELEMETRY_TRACES_FILE": str(folder / "traces.jsonl"),
            "HAMI_SCHEDULER_GRANT_KEY_FILE": str(made.grant_key),
        }
        port = free_port()
        env["HAMI_SCHEDULER_HTTP_BIND"] = f"127.0.0.1:{port}"
        log = stack.enter_context((folder / "scheduler.log").open("w"))
        command = [sys.executable, "-m", "hami_scheduler"]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        stack.callback(stop, process)
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", process, folder / "scheduler.log")
        yield Bench(port=port, pid=process.pid, nodes=names)


@contextmanager
def api_server(folder: Path, made: Credentials) -> Iterator[Path]:
    """The emulated API server; yields a kubeconfig."""
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    argv = [
        *(sys.executable, "-m", "hamictl.apiserver", "--data", str(folder / "apiserver")),
        *("--port", str(port), "--tls-cert", str(made.certificate("apiserver"))),
        *("--tls-key", str(made.key("apiserver")), "--token-file", str(made.tokens)),
    ]
    token = made.secret("kubernetes-admin")
    config = write_kubeconfig(
        folder / "kubeconfig", server=url, authority=made.ca.read_bytes(), token=token
    )
    with (folder / "apiserver.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        wait_until_ready(f"{url}/readyz", process, folder / "apiserver.log", ca=made.ca)
        yield config
    finally:
        stop(process)


def wait_until_ready(
    url: str, process: subprocess.Popen[bytes], log: Path, ca: Path | None = None
) -> None:
    """Polls until the address answers 200."""
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=str(ca)) if ca else True
    deadline = time.monotonic() + READY_S
    with httpx.Client(verify=verify) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.get(url).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
    raise SystemExit(f"{url} did not become ready:\n{log.read_text()[-2000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a child."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def fill(dsn: str, config: Path, names: list[str], per_node: int) -> None:
    """Nodes and bound pods at the API server, and the same in the ledger."""
    placed = [(name, f"placed-{name}-{n}") for name in names for n in range(per_node)]
    async with open_kube_api(config) as api:
        gate = asyncio.Semaphore(32)

        async def create(path: str, body: dict[str, Any]) -> str:
            async with gate:
                return str((await api.create(path, body))["metadata"]["uid"])

        await asyncio.gather(*(create("/api/v1/nodes", {"metadata": {"name": n}}) for n in names))
        pods = "/api/v1/namespaces/default/pods"
        uids = await asyncio.gather(*(create(pods, bound_pod(pod, n)) for n, pod in placed))
    connection = await asyncpg.connect(dsn)
    try:
        await write_ledger(connection, names, placed, uids, per_node)
    finally:
        await connection.close()


def bound_pod(name: str, node: str | None) -> dict[str, Any]:
    """A pod with one slice of 4 GiB and 10 % of the cores."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "10"}
    spec: dict[str, Any] = {
        "schedulerName": "hami-scheduler",
        "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
    }
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def write_ledger(
    connection: Any,
    names: list[str],
    placed: list[tuple[str, str]],
    uids: list[str],
    per_node: int,
) -> None:
    """Cards with what the placed pods hold: `per_node` slices spread over the cards."""
    await connection.executemany("INSERT INTO nodes (name) VALUES ($1)", [(n,) for n in names])
    share = [per_node // CARDS + (card < per_node % CARDS) for card in range(CARDS)]
    await connection.executemany(
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
        " ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy, used_slots,"
        " used_memory_mib, used_core_percent)"
        " VALUES ($1, $2, 'NVIDIA', $3, 'NVIDIA A100-SXM4-80GB', 10, $4, 100, 10, $4, 100, true,"
        " $5, $5 * 4096, $5 * 10)",
        [
            (f"GPU-{name}-{card}", name, card, MEMORY_MIB, share[card])
            for name in names
            for card in range(CARDS)
        ],
    )
    ids = [str(uuid.uuid4()) for _ in placed]
    await connection.executemany(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, token)"
        " VALUES ($1, $2, 'default', $3, 1, $4, 'allocated', nextval('allocation_tokens'))",
        [(one, uid, pod, name) for one, uid, (name, pod) in zip(ids, uids, placed, strict=True)],
    )
    await connection.executemany(
        "INSERT INTO allocation_containers VALUES ($1, 0, 'main', 'app')", [(one,) for one in ids]
    )
    await connection.executemany(
        "INSERT INTO allocation_devices VALUES ($1, 0, 0, 'main', 'app', $2, 'NVIDIA', 4096, 10)",
        [
            (one, f"GPU-{name}-{number % CARDS}")
            for one, number, (name, _) in zip(
                ids, (n % per_node for n in range(len(ids))), placed, strict=True
            )
        ],
    )
    await connection.execute("ANALYZE")


class Client:
    """One keep-alive connection, as kube-scheduler has."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=60)

    def filter(self) -> float:
        """Asks for one new pod; returns the seconds it took."""
        pod = bound_pod(f"new-{uuid.uuid4().hex[:12]}", None)
        pod["metadata"]["uid"] = str(uuid.uuid4())
        body = json.dumps({"pod": pod, "nodenames": self._bench.nodes})
        started = time.perf_counter()
        self._connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse().read()
        spent_s = time.perf_counter() - started
        result = json.loads(answer)
        if len(result["NodeNames"] or ()) != 1:
            raise SystemExit(f"unexpected answer: {answer[:500]!r}")
        return spent_s


def one_after_the_other(bench: Bench, count: int) -> list[float]:
    """Latencies in ms of one client."""
    client = Client(bench)
    for _ in range(WARM_UP):
        client.filter()
    return [client.filter() * 1000 for _ in range(count)]


def all_at_once(bench: Bench, each: int) -> tuple[float, list[float]]:
    """(decisions per second, latencies in ms) of CLIENTS clients."""
    spent: list[float] = []

    def work() -> None:
        client = Client(bench)
        for _ in range(each):
            spent.append(client.filter() * 1000)

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CLIENTS * each / (time.perf_counter() - started), spent


def fdatasync_ms(folder: Path) -> float:
    """Median time of writing one 8 KiB page through to the disk."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        times = []
        for _ in range(200):
            os.pwrite(file.fileno(), b"x" * 8192, 0)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(nodes: int, count: int) -> dict[str, Any]:
    """One row of the table."""
    with system(nodes) as bench:
        fsync = fdatasync_ms(Path(tempfile.gettempdir()))
        used_s = cpu_s(bench.pid)
        single = one_after_the_other(bench, count)
        used_s = cpu_s(bench.pid) - used_s
        per_s, crowd = all_at_once(bench, max(25, count // 8))
        return {
            "nodes": nodes,
            "cards": nodes * CARDS,
            "placed_pods": nodes * PLACED_PODS[nodes],
            "fdatasync_ms": round(fsync, 3),
            "p50_ms": round(statistics.median(single), 2),
            "p99_ms": round(percentile(single, 0.99), 2),
            "cpu_ms": round(used_s * 1000 / (count + WARM_UP), 2),
            "budget_p50_ms": round(BUDGET_MS[nodes] + fsync, 2),
            "clients_8_per_s": round(per_s),
            "budget_per_s": BUDGET_PER_S,
            "clients_8_p50_ms": round(statistics.median(crowd), 2),
            "clients_8_p99_ms": round(percentile(crowd, 0.99), 2),
            "resident_mib": round(resident_mib(bench.pid)),
        }


def machine() -> dict[str, Any]:
    """What it ran on."""
    return {
        "cpus": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 400])
    arguments = parser.parse_args()
    where = machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print("durable Postgres, NATS, Redis, emulated API server; traces, records and outbox on\n")
    rows = [measure(nodes, arguments.runs) for nodes in arguments.nodes]
    columns = list(rows[0])
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(f"{row[name]!s:>16}" for name in columns))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": where, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
