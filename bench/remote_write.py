"""Usage in a time-series store beside the ledger: what Prometheus's remote write carries.

`make bench-remote-write` (Debian's packages prometheus and victoria-metrics): pages like those of
node-agents with 20,000 series in all, scraped every second by a Prometheus that sends what it reads
to VictoriaMetrics. Prints samples per second that arrived, those lost, and processor time a sample
of each of the two.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

METRICS = (
    "hami_vgpu_memory_used_bytes",
    "hami_vgpu_core_used_percent",
    "hami_container_last_kernel_timestamp_seconds",
    "hami_vgpu_driver_memory_used_bytes",
)
PER_NODE = 16
"""Containers, one card each."""
NODES_A_PAGE = 16
"""One server answers for all of them, and shall not be what is measured."""
WARM_S = 10.0
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Counts at one moment."""

    at_s: float
    sent: float
    stored: float
    failed: float
    cpu_s: Mapping[str, float]


def page(number: int, round_: int) -> bytes:
    """The series of some nodes, with values of that round."""
    lines = []
    nodes = range(number * NODES_A_PAGE, (number + 1) * NODES_A_PAGE)
    for name in METRICS:
        lines.append(f"# TYPE {name} gauge")
        for node, place in product(nodes, range(PER_NODE)):
            labels = f'namespace="team-{place}",pod="train-{node}-{place}",container="cuda"'
            labels += f',device_uuid="GPU-{node:08d}-{place:04d}",vdevice_index="0"'
            lines.append(f"{name}{{{labels}}} {round_ * 1_048_576 + place * 977}")
    return ("\n".join(lines) + "\n").encode()


class QuietServer(ThreadingHTTPServer):
    """A scrape that was given up in the middle is counted by who gave it up."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Quiet."""


@contextmanager
def pages(count: int) -> Iterator[int]:
    """The port of a server with so many pages, whose values change every second."""
    made = [[page(number, round_) for round_ in range(4)] for number in range(count)]

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = int(self.path.rsplit("/", 1)[1].partition("?")[0])
            body = made[number][int(time.time()) % 4]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with QuietServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def started(*argv: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process while the block runs."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def counted(port: int, name: str) -> float:
    """A counter of a page of metrics, summed over its labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def asked(port: int, expr: str) -> list[Any]:
    """Return the answer of VictoriaMetrics to a query, now."""
    query = urlencode({"query": expr})
    with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if done():
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            sys.exit(f"bench-remote-write: waited {PATIENCE_S:g} s for {what}")
        time.sleep(0.2)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=20, help="1024 series each")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    programs = {name: shutil.which(name) or "" for name in ("prometheus", "victoria-metrics")}
    if not all(programs.values()):
        sys.exit(
            "bench-remote-write: prometheus or victoria-metrics is missing: "
            "apt-get install --no-install-recommends prometheus victoria-metrics"
        )
    with tempfile.TemporaryDirectory(prefix="hami-remote-write-") as name:
        measure(Path(name), programs, options.pages, options.seconds)


def measure(folder: Path, programs: Mapping[str, str], count: int, seconds: float) -> None:
    """Starts both, lets them run, and prints."""
    store_port, prometheus_port = free_port(), free_port()
    with pages(count) as page_port:
        config = {
            "global": {"scrape_interval": "1s"},
            "remote_write": [{"url": f"http://127.0.0.1:{store_port}/api/v1/write"}],
            "scrape_configs": [
                {
                    "job_name": f"nodes-{number}",
                    "metrics_path": f"/{number}",
                    "static_configs": [{"targets": [f"127.0.0.1:{page_port}"]}],
                }
                for number in range(count)
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        store = started(
            programs["victoria-metrics"],
            f"-storageDataPath={folder / 'store'}",
            f"-httpListenAddr=127.0.0.1:{store_port}",
            "-search.latencyOffset=1s",
            log=folder / "store.log",
        )
        prometheus = started(
            programs["prometheus"],
            f"--config.file={folder / 'prometheus.yml'}",
            "--enable-feature=agent",
            f"--storage.agent.path={folder / 'wal'}",
            f"--web.listen-address=127.0.0.1:{prometheus_port}",
            log=folder / "prometheus.log",
        )
        with store as stores, prometheus as sends:
            pids = {"VictoriaMetrics": stores.pid, "Prometheus": sends.pid}

            def moment() -> Moment:
                return Moment(
                    at_s=time.monotonic(),
                    sent=counted(prometheus_port, "prometheus_remote_storage_samples_total"),
                    stored=counted(store_port, 'vm_rows_inserted_total{type="promremotewrite"'),
                    failed=counted(
                        prometheus_port, "prometheus_remote_storage_samples_failed_total"
                    ),
                    cpu_s={name: cpu_s(pid) for name, pid in pids.items()},
                )

            until(lambda: moment().stored > 0, "the first samples")
            time.sleep(WARM_S)
            first = moment()
            time.sleep(seconds)
            last = moment()
            series = f"count({{__name__=~'{'|'.join(METRICS)}'}})"
            wanted = count * NODES_A_PAGE * PER_NODE * len(METRICS)

            def all_answer() -> bool:
                answer = asked(store_port, series)
                return bool(answer) and float(answer[0]["value"][1]) == wanted

            until(all_answer, f"all of {wanted} series to answer a query")
            print_figures(first, last, wanted)


def print_figures(first: Moment, last: Moment, held: int) -> None:
    """Print the figures as a table's rows."""
    lasted_s, stored = last.at_s - first.at_s, last.stored - first.stored
    print(f"stored   {stored / lasted_s:,.0f} samples/s, {stored:,.0f} in {lasted_s:.0f} s")
    print(f"failed   {last.failed:,.0f}; {held:,.0f} series answer a query")
    for name, before in first.cpu_s.items():
        used = last.cpu_s[name] - before
        print(f"{name:16} {used / lasted_s:.2f} cores, {used / stored * 1e6:.1f} µs a sample")
    print(f"load     {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
