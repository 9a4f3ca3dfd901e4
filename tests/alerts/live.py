"""A real Prometheus that scrapes a running local system, and the results of its expressions.

Input: the addresses that `hamictl up --json` prints. Output: answers of Prometheus's own HTTP API.
"""

import json
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "k8s" / "chart" / "monitoring" / "rules"
BOARDS = ROOT / "k8s" / "chart" / "monitoring" / "dashboards"
PATIENCE_S = 180.0
CHECK_INTERVAL_S = 0.5
TLS = ("hami-webhook",)
"""Locally it has no plain port; its authority belongs only to this system."""
VARIABLES = {"$node": ".*", "$namespace": ".*", "$pod": ".*", "$container": ".*"}
Json = dict[str, Any]


def targets(up: Mapping[str, Any]) -> dict[str, list[str]]:
    """Host and port of each page of metrics, by job."""
    host = re.compile(r"https?://([^/]+)")

    def address_of(url: str) -> str:
        found = host.match(url)
        assert found is not None, url
        return found[1]

    return {
        "hami-scheduler": [address_of(up["scheduler_url"])],
        "hami-webhook": [address_of(up["webhook_url"])],
        "hami-metrics": [address_of(up["metrics_url"])],
        "hami-node-agent": [address_of(each["metrics_url"]) for each in up["node_agents"]],
    }


def expressions() -> dict[str, str]:
    """Return the expression of each rule and panel by its place, Grafana's variables filled in."""
    found = {}
    for file in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                found[rule.get("alert") or rule["record"]] = rule["expr"]
    for board in sorted(BOARDS.glob("*.json")):
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel["targets"]:
                if "expr" in target:
                    where = f"{board.stem}/{panel['title']}/{target['refId']}"
                    expr = (
                        target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1h")
                    )
                    for name, value in VARIABLES.items():
                        expr = expr.replace(name, value)
                    found[where] = expr
    return found


def page(job: str, address: str) -> str:
    """The metrics as Prometheus's text."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"{'https' if job in TLS else 'http'}://{address}/metrics"
    with urlopen(url, timeout=30, context=context) as answer:
        return str(answer.read().decode())


class Prometheus:
    """The HTTP API of a Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._base = f"{self.url}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._base}/{path}?{urlencode(parameters)}", timeout=10) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expr: str) -> list[Json]:
        return list(self.get("query", query=expr)["result"])


@contextmanager
def prometheus(program: str, folder: Path, jobs: Mapping[str, list[str]]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes every second inside the block."""
    config = folder / "prometheus.yml"
    scrapes = [
        {"job_name": job, "honor_labels": True, "static_configs": [{"targets": addresses}]}
        | ({"scheme": "https", "tls_config": {"insecure_skip_verify": True}} if job in TLS else {})
        for job, addresses in jobs.items()
    ]
    whole = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(each) for each in sorted(RULES.glob("*.yaml"))],
        "scrape_configs": scrapes,
    }
    config.write_text(yaml.safe_dump(whole))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            found = Prometheus(port)
            until(lambda: _answers(found), "Prometheus to answer")
            yield found
        finally:
            process.terminate()
            process.wait(30)


def until(done: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(CHECK_INTERVAL_S)


def _answers(found: Prometheus) -> bool:
    try:
        found.query("vector(1)")
    except OSError:
        return False
    return True
