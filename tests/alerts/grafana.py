"""A real Grafana with our boards and the data sources of `docker-compose.yml`, at other addresses.

In: the folder of a Grafana (`HAMI_GRAFANA`: `bin/grafana-server`, `conf`, `public`; 7.5 or later).
Out: answers of its HTTP API. What a browser would ask for a panel goes through its data sources.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.alerts.live import BOARDS, ROOT, until

SOURCES = ROOT / "k8s" / "compose" / "observe" / "grafana" / "datasources" / "hami.yml"
FOLDER = "HAMI_GRAFANA"
LEDGER_TYPE_SINCE = 10
"""From this major version on the type of the ledger's data source has its present name."""
QUERY_SINCE = 8
"""From this major version on panels ask by `ds/query`, before by `tsdb/query`."""
Json = dict[str, Any]


def grafana_folder() -> Path:
    """Skips where there is none."""
    named = os.environ.get(FOLDER)
    if not named:
        pytest.skip(f"{FOLDER} names no folder of a Grafana (bin/grafana-server, conf, public)")
    folder = Path(named)
    if not (folder / "bin" / "grafana-server").exists():
        pytest.fail(f"{FOLDER}: {folder} has no bin/grafana-server")
    return folder


class Grafana:
    """Grafana's HTTP API without a login: it listens on the loopback device only."""

    def __init__(self, port: int, major: int) -> None:
        self._query = "ds/query" if major >= QUERY_SINCE else "tsdb/query"
        self._base = f"http://127.0.0.1:{port}/api"

    def get(self, path: str, **parameters: str) -> Any:
        """Raises: AssertionError with the answer."""
        return self._answer(Request(f"{self._base}/{path}?{urlencode(parameters)}"))

    def post(self, path: str, body: Json) -> Any:
        """Raises: AssertionError with the answer."""
        headers = {"Content-Type": "application/json"}
        return self._answer(
            Request(f"{self._base}/{path}", data=json.dumps(body).encode(), headers=headers)
        )

    def _answer(self, request: Request) -> Any:
        try:
            with urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as exc:
            raise AssertionError(f"{request.full_url}: {exc.code}: {exc.read()!r}") from exc

    def source(self, name: str) -> int:
        """The number of a data source."""
        return int(self.get(f"datasources/name/{name}")["id"])

    def prometheus(self, path: str, **parameters: str) -> Any:
        """Through its data source, as a panel asks."""
        body = self.get(
            f"datasources/proxy/{self.source('Prometheus')}/api/v1/{path}", **parameters
        )
        assert body["status"] == "success", body
        return body["data"]

    def ledger(self, target: Json, *, since: str = "now-30d") -> Json:
        """Through its data source, as a panel asks; the answer to that one query."""
        asked = {
            "refId": target["refId"],
            "datasourceId": self.source("Ledger"),
            "rawSql": target["rawSql"],
            "format": target["format"],
            "intervalMs": 60_000,
            "maxDataPoints": 500,
        }
        found = self.post(self._query, {"from": since, "to": "now", "queries": [asked]})
        answer = found["results"][target["refId"]]
        assert not answer.get("error"), answer
        return dict(answer)


@contextmanager
def grafana(home: Path, folder: Path, addresses: Mapping[str, str]) -> Iterator[Grafana]:
    """Run it inside the block, with boards and data sources from its provisioning.

    `addresses`: of the data sources that are there, by name; the ledger's is its DSN.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    major = _major(home)
    _provision(folder, _sources(addresses, major))
    settings: Mapping[str, str] = {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(folder / "data"),
        "GF_PATHS_LOGS": str(folder / "logs"),
        "GF_PATHS_PLUGINS": str(folder / "plugins"),
        "GF_PATHS_PROVISIONING": str(folder / "provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Admin",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    (folder / "plugins").mkdir()
    with (folder / "grafana.log").open("w") as log:
        process = subprocess.Popen(
            [home / "bin" / "grafana-server", "-homepath", home],
            env={**os.environ, **settings},
            stdout=log,
            stderr=log,
        )
        try:
            found = Grafana(port, major)
            until(lambda: _serves(found), "Grafana to answer")
            yield found
        finally:
            process.terminate()
            process.wait(30)


def _serves(found: Grafana) -> bool:
    try:
        return bool(found.get("health")["database"] == "ok")
    except OSError:
        return False


def _major(home: Path) -> int:
    """`Version 7.5.5 (commit: ...)`."""
    printed = subprocess.run(
        [home / "bin" / "grafana-server", "-v"],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    return int(printed.split()[1].split(".")[0])


def _sources(addresses: Mapping[str, str], major: int) -> list[Json]:
    written = yaml.safe_load(SOURCES.read_text())["datasources"]
    assert addresses.keys() <= {one["name"] for one in written}
    return [
        _ledger(one, addresses["Ledger"], major)
        if one["name"] == "Ledger"
        else {**one, "url": addresses[one["name"]]}
        for one in written
        if one["name"] in addresses
    ]


def _ledger(written: Json, dsn: str, major: int) -> Json:
    found = urlsplit(dsn)
    database = found.path.removeprefix("/")
    return {
        **written,
        "type": written["type"] if major >= LEDGER_TYPE_SINCE else "postgres",
        "url": f"{found.hostname}:{found.port}",
        "user": unquote(found.username or ""),
        # Older releases look for it here.
        "database": database,
        "jsonData": {**written["jsonData"], "database": database, "postgresVersion": 1000},
        "secureJsonData": {"password": unquote(found.password or "")},
    }


def _provision(folder: Path, sources: list[Json]) -> None:
    provider = {"name": "hami", "type": "file", "options": {"path": str(BOARDS)}}
    written = {
        "datasources": {"apiVersion": 1, "datasources": sources},
        "dashboards": {"apiVersion": 1, "providers": [provider]},
    }
    for kind, content in written.items():
        path = folder / "provisioning" / kind
        path.mkdir(parents=True)
        (path / "hami.yaml").write_text(yaml.safe_dump(content))
    for kind in ("plugins", "notifiers", "alerting"):
        (folder / "provisioning" / kind).mkdir()
