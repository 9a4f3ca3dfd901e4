"""Reviews per second of the webhook, beside a bare endpoint of the same server in the same run.

The console script `hami-webhook` runs over TLS with audit lines and traces on; beside it the bare
endpoint (bench/bare_endpoint.py), which reads the same body and answers two bytes. Rounds of the
same requests take turns between both, half a second each, so that both see the same machine in the
same mood; the median of the rounds' ratios is what counts. The reviews are of 64 workloads, replica
after replica; rounds in which no two pods are alike show what a pod costs that nothing was
remembered of. CPU time per answer is printed too: the client has a share in all rates, which makes
their ratio look better. Then the certificate is rotated every second under load, half of it on new
connections: no request may fail. Writes bench/results/webhook.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import platform
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import uvloop
from hamictl.servers.certificates import Authority, write_certificate
from hamictl.servers.ports import free_port

RESULTS = Path(__file__).parent / "results" / "webhook.json"
GOAL = 0.4
ROUNDS = 30
ROTATE_EVERY_S = 1.0


@dataclass(slots=True)
class Load:
    """What came of one round."""

    latencies_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    took_s: float = 0.0
    server_cpu_s: float = 0.0
    """CPU time of the webhook's process meanwhile."""

    def cpu_us(self) -> float:
        """CPU time of the server per answer."""
        return 1e6 * self.server_cpu_s / len(self.latencies_s)

    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies_s) / self.took_s

    def quantile_ms(self, share: float) -> float:
        """The latency that `share` of the answers kept to."""
        ordered = sorted(self.latencies_s) or [math.nan]
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def review(workload: int, replica: int, value: str = "x" * 20) -> bytes:
    """A replica as an API server sends it, of a Deployment with a slice.

    Replicas differ in the uid of the review and in the volume that the API server mounts.
    """
    memory_mib = str(4096 + workload)
    resources = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": memory_mib,
        "nvidia.com/gpucores": "30",
    }
    volume = f"kube-api-access-{replica:05}"
    mount = {
        "name": volume,
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    container = {
        "name": "main",
        "image": "registry.example.com/team/inference:1.2.3",
        "command": ["python", "-m", "serve", "--port", "8080"],
        "env": [{"name": f"SETTING_{n}", "value": value} for n in range(8)],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": {**resources, "cpu": "2"}, "requests": {**resources, "cpu": "2"}},
        "volumeMounts": [mount],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"inference-{workload:02}-7d4b9c6f5-",
            "namespace": "team",
            "labels": {"app": "inference", "pod-template-hash": "7d4b9c6f5"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "inference", "uid": "u"}
            ],
        },
        "spec": {
            "containers": [container],
            "volumes": [{"name": volume, "projected": {"sources": []}}],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        },
    }
    request = {
        "uid": f"review-{workload:02}-{replica:05}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": pod,
        "dryRun": False,
    }
    document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(document).encode()


def posted(body: bytes, path: str) -> bytes:
    """The whole HTTP request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


NextRequest = Callable[[], bytes]
WORKLOADS, REPLICAS = 64, 16
_TURN, _VALUE = itertools.count(), itertools.count()
_BODIES = [review(w, r) for r in range(REPLICAS) for w in range(WORKLOADS)]
_REVIEWS = [posted(body, "/webhook") for body in _BODIES]
_BARE = [posted(body, "/bare") for body in _BODIES]
_MARK = "y" * 20
_UNSEEN = posted(review(0, 0, _MARK), "/webhook")


def replica() -> bytes:
    """A review of a replica of some workload."""
    return _REVIEWS[next(_TURN) % len(_REVIEWS)]


def bare() -> bytes:
    """The same to the bare endpoint."""
    return _BARE[next(_TURN) % len(_BARE)]


def unseen() -> bytes:
    """A review of a pod that is like none before it: its environment is new."""
    return _UNSEEN.replace(_MARK.encode(), b"%020d" % next(_VALUE))


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: the webhook, or the bare endpoint."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """CPU time of the process so far: the scheduler's own count of its threads, in ns. The
        times of proc(5) `stat` are sampled by ticks, which short bursts of work slip between."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Connection:
    """One keep-alive connection that asks one thing at a time."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self._port, self._trust = port, trust
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer. Raises: OSError, TimeoutError, or ValueError for no 200."""
        async with asyncio.timeout(10):
            if self._streams is None:
                self._streams = await asyncio.open_connection(
                    "127.0.0.1", self._port, ssl=self._trust, server_hostname="localhost"
                )
            reader, writer = self._streams
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise ValueError(head.decode())
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            return await reader.readexactly(length)

    async def close(self) -> None:
        """Leaves; a connection that is gone already is no matter."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def ask_for(
    seconds: float, load: Load, request: NextRequest, connection: Connection, *, renew: bool
) -> None:
    """Asks one thing after the other; `renew`: on a new connection each."""
    end_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < end_s:
        try:
            body = await connection.ask(request())
            if b'"allowed":false' in body:
                raise ValueError(body.decode())
            load.latencies_s.append(time.perf_counter() - began_s)
        except (OSError, EOFError, ValueError, TimeoutError) as exc:
            load.failures.append(f"{type(exc).__name__}: {exc}")
            await connection.close()
        if renew:
            await connection.close()
    await connection.close()


async def round_of(
    seconds: float,
    request: NextRequest,
    server: Server,
    trust: ssl.SSLContext,
    connections: int,
) -> Load:
    """One round on connections that are kept."""
    load, began_s, cpu_s, port = Load(), time.perf_counter(), server.cpu_s(), server.port
    await asyncio.gather(
        *(
            ask_for(seconds, load, request, Connection(port, trust), renew=False)
            for _ in range(connections)
        )
    )
    load.took_s = time.perf_counter() - began_s
    load.server_cpu_s = server.cpu_s() - cpu_s
    return load


async def rotated(
    seconds: float,
    port: int,
    trust: ssl.SSLContext,
    connections: int,
    folder: Path,
    authority: Authority,
) -> tuple[Load, int]:
    """Load while the certificate changes; every second connection is made anew each time."""
    load, rotations = Load(), 0
    began_s = time.perf_counter()
    asking = asyncio.gather(
        *(
            ask_for(seconds, load, replica, Connection(port, trust), renew=bool(number % 2))
            for number in range(connections)
        )
    )
    while not asking.done():
        await asyncio.wait([asking], timeout=ROTATE_EVERY_S)
        if not asking.done():
            write_pair(authority, folder)
            rotations += 1
    await asking
    load.took_s = time.perf_counter() - began_s
    return load, rotations


def write_pair(authority: Authority, folder: Path) -> None:
    """A new certificate with its key, in place of the old ones."""
    authority.make_serving(
        "webhook", certificate_file=folder / "tls.crt", key_file=folder / "tls.key"
    )


@contextmanager
def webhook(folder: Path) -> Iterator[Server]:
    """The console script, as it runs in a cluster, without a bus."""
    port = free_port()
    env = os.environ | {
        "HAMI_WEBHOOK_HTTP_BIND": f"127.0.0.1:{port}",
        "HAMI_WEBHOOK_TLS_CERT_FILE": str(folder / "tls.crt"),
        "HAMI_WEBHOOK_TLS_KEY_FILE": str(folder / "tls.key"),
        "HAMI_TELEMETRY_TRACES_FILE": str(folder / "traces.jsonl"),
    }
    script = Path(sys.executable).parent / "hami-webhook"
    with (folder / "audit.log").open("w") as log, _running([script], port, env, log) as server:
        yield server


@contextmanager
def bare_endpoint(folder: Path) -> Iterator[Server]:
    """The same server with nothing to decide."""
    port, module = free_port(), Path(__file__).with_name("bare_endpoint.py")
    command: list[str | Path] = [sys.executable, module, f"127.0.0.1:{port}", folder]
    with _running(command, port, dict(os.environ), None) as server:
        yield server


@contextmanager
def _running(
    command: Sequence[str | Path], port: int, env: Mapping[str, str], log: IO[str] | None
) -> Iterator[Server]:
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield Server(process.pid, port)
    finally:
        process.terminate()
        process.wait(timeout=30)


async def until_ready(port: int, request: bytes, trust: ssl.SSLContext) -> None:
    """Raises: TimeoutError."""
    async with asyncio.timeout(60):
        while True:
            connection = Connection(port, trust)
            try:
                await connection.ask(request)
                return
            except OSError:
                await asyncio.sleep(0.1)
            finally:
                await connection.close()


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs everything."""
    authority = Authority.new("bench")
    write_pair(authority, folder)
    write_certificate(folder / "ca.pem", authority.certificate)
    trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with webhook(folder) as server, bare_endpoint(folder) as other:
        port = server.port
        for each, request in ((server, replica), (other, bare)):
            await until_ready(each.port, request(), trust)
            await round_of(1.0, request, each, trust, args.connections)
        kinds = {"bare": (bare, other), "review": (replica, server), "unseen": (unseen, server)}
        rounds: dict[str, list[Load]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, (request, each) in kinds.items():
                load = await round_of(args.seconds, request, each, trust, args.connections)
                rounds[kind].append(load)
        under, rotations = await rotated(
            args.rotate_seconds, port, trust, args.connections, folder, authority
        )
    # Written by the process, which has ended: every review has its audit line and its span.
    audit_lines = (folder / "audit.log").read_text().count('"hami_webhook.audit"')
    spans = (folder / "traces.jsonl").read_text().count('"admission"')
    loads = [load for kind in rounds.values() for load in kind]
    answered = sum(len(load.latencies_s) for load in (*rounds["review"], *rounds["unseen"]))
    per_second = {kind: median(each, Load.rate) for kind, each in rounds.items()}
    return {
        "reviews_per_second": round(per_second["review"], 1),
        "unseen_per_second": round(per_second["unseen"], 1),
        "bare_per_second": round(per_second["bare"], 1),
        "ratio": round(ratio(rounds["review"], rounds["bare"]), 3),
        "unseen_ratio": round(ratio(rounds["unseen"], rounds["bare"]), 3),
        "goal": GOAL,
        **{f"{kind}_cpu_us": round(median(each, Load.cpu_us)) for kind, each in rounds.items()},
        "p50_ms": round(median(rounds["review"], partial(Load.quantile_ms, share=0.5)), 2),
        "p99_ms": round(median(rounds["review"], partial(Load.quantile_ms, share=0.99)), 2),
        "failures": [text for load in loads for text in load.failures][:5],
        "audit_lines": audit_lines,
        "spans": spans,
        "answered": answered,
        "rotation": {
            "seconds": args.rotate_seconds,
            "rotations": rotations,
            "answers": len(under.latencies_s),
            "failures": len(under.failures),
            "first_failures": under.failures[:5],
            "p99_ms": round(under.quantile_ms(0.99), 2),
        },
    }


def median(loads: Sequence[Load], figure: Callable[[Load], float]) -> float:
    """Of one figure of each round."""
    return statistics.median(map(figure, loads))


def ratio(loads: Sequence[Load], bares: Sequence[Load]) -> float:
    """Of the rates of the rounds that came one after the other."""
    pairs = zip(loads, bares, strict=True)
    return statistics.median(load.rate() / bare.rate() for load, bare in pairs)


def main() -> None:
    """Measures, prints and writes the results; fails when a request failed."""
    parser = argparse.ArgumentParser(prog="make bench-webhook", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rotate-seconds", type=float, default=30.0, help="0: no rotation")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(measure(args, Path(folder)))
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    rotation = found["rotation"]
    print(
        f"reviews {found['reviews_per_second']}/s, bare endpoint {found['bare_per_second']}/s, "
        f"ratio {found['ratio']} (goal {GOAL}); no two alike {found['unseen_per_second']}/s, "
        f"ratio {found['unseen_ratio']}; CPU of the server {found['review_cpu_us']} us, "
        f"{found['unseen_cpu_us']} us and bare {found['bare_cpu_us']} us; "
        f"p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms"
    )
    print(
        f"rotation: {rotation['rotations']} certificates in {rotation['seconds']:g} s, "
        f"{rotation['answers']} answers, {rotation['failures']} failures, "
        f"p99 {rotation['p99_ms']} ms"
    )
    if found["failures"] or rotation["failures"]:
        sys.exit(f"requests failed: {found['failures'] + rotation['first_failures']}")


if __name__ == "__main__":
    main()
