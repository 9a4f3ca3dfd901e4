"""Every verb of hamictl against the scheduler that `k8s/base` runs, and the messages of mistakes.

On the emulated API server always, and on a real one where KUBEBUILDER_ASSETS names it.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from hamilocal.servers.certificates import Authority, write_certificate
from hamilocal.supervisor.ports import free_port
from typer.testing import CliRunner

from tests.conftest import Databases
from tests.integration.k8s import installation
from tests.integration.k8s.installation import Cluster, Scheduler
from tests.servers import Servers, migrate

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A cluster with its scheduler and ledger."""

    cluster: Cluster
    scheduler: Scheduler
    postgres_dsn: str
    folder: Path

    @property
    def ca(self) -> Path:
        return self.cluster.files / "ca" / "ca.crt"

    @property
    def client(self) -> Path:
        return self.cluster.files / "client"

    def get(self, url: str, path: str) -> httpx.Response:
        """Without a certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        return httpx.get(f"{url}{path}", verify=context, timeout=30)

    def post(self, url: str, path: str, *, pair: Path | None = None) -> httpx.Response:
        """With the certificate in the folder `pair`; kube-scheduler's is the default."""
        context = ssl.create_default_context(cafile=str(self.ca))
        folder = pair or self.client
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        return httpx.post(f"{url}{path}", json={}, verify=context, timeout=30)


@pytest.fixture(scope="module", params=["emulator", "real"])
def installed(
    request: pytest.FixtureRequest,
    servers: Servers,
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("installed")
    if request.param == "emulator":
        opened = installation.emulated(folder)
    else:
        opened = installation.real(folder, request.getfixturevalue("kubernetes_assets"))
    with (
        opened as cluster,
        databases.database("migrated", fill=migrate) as dsn,
        servers.nats() as nats_url,
    ):
        backends = {
            "HAMI_POSTGRES_DSN": dsn,
            "HAMI_REDIS_URL": servers.redis(),
            "HAMI_NATS_URL": nats_url,
        }
        with installation.scheduler(cluster, folder, backends) as scheduler:
            yield Installed(cluster=cluster, scheduler=scheduler, postgres_dsn=dsn, folder=folder)


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(installed: Installed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """`ask("get", "devices", as_="reader", HAMI_...="...")` -> (exit status, all it printed)."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: str, as_: str = "reader", **changes: str | Path | None) -> tuple[int, str]:
        env: dict[str, str | None] = {
            "HAMI_FOLDER": str(tmp_path / "none"),
            "KUBECONFIG": str(installed.cluster.kubeconfig),
            "HAMI_SCHEDULER_URL": installed.scheduler.operator,
            "HAMI_SCHEDULER_CA_FILE": str(installed.ca),
            "HAMI_SCHEDULER_TOKEN": installed.cluster.tokens.get(as_),
            "HAMI_POSTGRES_DSN": installed.postgres_dsn,
        }
        env |= {name: None if value is None else str(value) for name, value in changes.items()}
        done = CliRunner().invoke(app, argv, env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        return done.exit_code, done.output

    return run


PODS = """
apiVersion: v1
kind: Pod
metadata: {name: gpu-pod}
spec:
  containers:
    - {name: a, image: none, resources: {limits: {nvidia.com/gpu: 1}}}
"""


@pytest.fixture
def pod_file(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(PODS)
    return path


READS = [
    ("get", "devices", "-o", "json"),
    ("get", "allocations"),
    ("get", "nodes"),
    ("get", "pods"),
    ("drift",),
    ("dead-letters",),
]


@pytest.mark.parametrize("argv", READS, ids=" ".join)
@pytest.mark.parametrize("as_", ["reader", "operator"])
def test_who_may_read_reads(ask: Ask, argv: tuple[str, ...], as_: str) -> None:
    status, output = ask(*argv, as_=as_)

    assert status == 0, output
    assert "not asked" not in output


def test_explain_and_history_answer_about_a_pod(ask: Ask, installed: Installed) -> None:
    body = {
        "metadata": {"name": "asked"},
        "spec": {"containers": [{"name": "a", "image": "none"}]},
    }
    with _kubernetes(installed) as client:
        client.post("/api/v1/namespaces/default/pods", json=body)

    status, output = ask("explain", "asked")
    assert (status, "asked" in output) == (0, True), output
    status, output = ask("history", "asked", "-o", "json")
    assert (status, json.loads(output)["items"]) == (0, [])
    status, output = ask("explain", "nowhere")
    assert status == ExitCode.NOT_FOUND
    assert "neither the cluster nor the ledger knows it" in output


def _kubernetes(installed: Installed) -> httpx.Client:
    config = yaml.safe_load(installed.cluster.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    token = config["users"][0]["user"]["token"]
    return httpx.Client(
        base_url=cluster["server"],
        verify=ssl.create_default_context(cadata=authority),
        headers={"authorization": f"Bearer {token}"},
    )


def test_the_verbs_that_need_no_scheduler_work_too(ask: Ask, pod_file: Path) -> None:
    cluster = pod_file.with_name("cluster.json")
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {}}
    cluster.write_text(json.dumps({"kind": "List", "items": [node]}))

    assert ask("sql", "select count(*) from nodes", "-o", "csv") == (0, "count\n0\n")
    status, output = ask("db", "check")
    assert (status, "every promise holds" in output) == (0, True), output
    status, output = ask("lint", "-f", str(pod_file))
    assert status == 0, output
    status, output = ask("simulate", "--cluster", str(cluster), "-f", str(pod_file))
    assert status == 0, output


def test_adopting_is_for_operators(ask: Ask) -> None:
    status, output = ask("adopt", as_="operator")
    assert status == 0, output

    status, output = ask("adopt", as_="reader")
    assert status == ExitCode.NOT_ALLOWED
    assert "reader may not update scheduler.hami.io" in output
    assert "hami-operator" in output
    assert output.count("\n") == 1


def test_sending_a_letter_again_is_for_operators(ask: Ask) -> None:
    status, output = ask("dead-letters", "--send-again", "7", as_="operator")
    assert (status, output) == (
        ExitCode.NOT_FOUND,
        "hamictl: there is no dead letter 7\n",
    )

    status, output = ask("dead-letters", "--send-again", "7", as_="reader")
    assert status == ExitCode.NOT_ALLOWED
    assert "may not update" in output


@pytest.mark.parametrize(
    ("as_", "wanted"),
    [
        ("nobody", "may not get scheduler.hami.io: an administrator binds the ClusterRole"),
        ("unknown", "a token is wanted"),
    ],
)
def test_a_user_who_may_not_read_learns_what_is_missing(ask: Ask, as_: str, wanted: str) -> None:
    status, output = ask("get", "devices", as_=as_)

    assert status == ExitCode.NOT_ALLOWED
    assert wanted in output
    assert output.count("\n") == 1


def test_a_forged_token_is_not_good(ask: Ask) -> None:
    status, output = ask("get", "devices", HAMI_SCHEDULER_TOKEN="forged")

    assert status == ExitCode.NOT_ALLOWED
    assert "the token is not good: " in output


def test_kube_schedulers_port_takes_its_certificate_alone_and_has_no_api_for_people(
    ask: Ask, installed: Installed, tmp_path: Path
) -> None:
    extender = installed.scheduler.extender
    pair: dict[str, Any] = {
        "HAMI_SCHEDULER_URL": extender,
        "HAMI_SCHEDULER_TOKEN": None,
        "HAMI_SCHEDULER_CERT_FILE": installed.client / "tls.crt",
        "HAMI_SCHEDULER_KEY_FILE": installed.client / "tls.key",
    }
    for argv in [*READS, ("adopt",)]:
        status, output = ask(*argv, **pair)
        assert status == ExitCode.NOT_FOUND, output
        assert "is on the operators' port, with a token" in output
    assert installed.post(extender, "/filter").status_code == 200

    installation.write_client(installed.cluster.authority, tmp_path, name="scraper")
    for path in ("/filter", "/prioritize", "/bind", "/v1/adopt", "/metrics"):
        answer = installed.post(extender, path, pair=tmp_path)
        assert answer.status_code == 403, path
        assert "the certificate of 'scraper' may not use" in answer.json()["error"]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
def test_no_token_binds(installed: Installed, verb: str) -> None:
    context = ssl.create_default_context(cafile=str(installed.ca))
    for token in installed.cluster.tokens.values():
        with httpx.Client(
            verify=context, headers={"Authorization": f"Bearer {token}"}, timeout=30
        ) as client:
            answer = client.post(f"{installed.scheduler.operator}/{verb}", json={})
            assert answer.status_code in (403, 404), answer.text
            with pytest.raises(httpx.HTTPError):
                client.post(f"{installed.scheduler.extender}/{verb}", json={})
    answer = httpx.post(f"{installed.scheduler.probe}/{verb}", json={})
    assert answer.status_code == 404


def test_metrics_and_probes_need_no_certificate_and_open_nothing_else(
    installed: Installed,
) -> None:
    probe = installed.scheduler.probe
    assert httpx.get(f"{probe}/readyz").status_code == 200
    assert "hami_scheduler_view_age_seconds" in httpx.get(f"{probe}/metrics").text
    for path in ("/v1/devices", "/v1/openapi.json/x", "/v1/adopt"):
        assert httpx.get(f"{probe}{path}").status_code == 404
    assert installed.get(installed.scheduler.operator, "/metrics").status_code == 401
    assert installed.post(installed.scheduler.extender, "/metrics").status_code == 404


@pytest.mark.parametrize(("path", "most"), [("/v1/simulate", 16 << 20), ("/v1/adopt", 1 << 20)])
@pytest.mark.parametrize("with_length", [True, False], ids=["with length", "in chunks"])
def test_a_body_without_end_is_refused_before_it_fills_the_memory(
    installed: Installed, path: str, most: int, with_length: bool
) -> None:
    context = ssl.create_default_context(cafile=str(installed.ca))
    headers = {"Authorization": f"Bearer {installed.cluster.tokens['operator']}"}
    chunks = (b" " * 65536 for _ in range(most // 65536 + 1))

    answer = httpx.post(
        f"{installed.scheduler.operator}{path}",
        content=b" " * (most + 1) if with_length else chunks,
        headers=headers,
        verify=context,
        timeout=60,
    )

    assert answer.status_code == 413
    assert answer.json()["error"].startswith(f"the body is longer than {most} bytes")


class _Gateway(BaseHTTPRequestHandler):
    """Answers as a proxy in between does that can't reach what is behind it."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/").split("/")[0] or "502"))
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"<html>Bad gateway</html>")

    def log_message(self, *_args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def gateway() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Gateway)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def mistakes(
    installed: Installed, gateway: str, tmp_path: Path
) -> dict[str, tuple[dict[str, Any], str]]:
    """Of each mistake what is set, and what the sentence holds."""
    other = tmp_path / "other.crt"
    authority = Authority.new("another authority")
    write_certificate(other, authority.certificate)
    installation.write_client(authority, tmp_path / "foreign")
    foreign = {
        "HAMI_SCHEDULER_CERT_FILE": tmp_path / "foreign" / "tls.crt",
        "HAMI_SCHEDULER_KEY_FILE": tmp_path / "foreign" / "tls.key",
    }
    own_cert = {"HAMI_SCHEDULER_CERT_FILE": installed.client / "tls.crt"}
    scheduler, nobody = installed.scheduler, free_port()
    extender = {"HAMI_SCHEDULER_URL": scheduler.extender, "HAMI_SCHEDULER_TOKEN": None}
    no_file, text = tmp_path / "missing", tmp_path / "text"
    text.write_text("no certificate")
    plain = {"HAMI_SCHEDULER_TOKEN": None}
    return {
        "no CA": ({"HAMI_SCHEDULER_CA_FILE": None}, "set HAMI_SCHEDULER_CA_FILE"),
        "wrong CA": ({"HAMI_SCHEDULER_CA_FILE": other}, f"HAMI_SCHEDULER_CA_FILE={other}"),
        "CA missing": (
            {"HAMI_SCHEDULER_CA_FILE": no_file},
            f"HAMI_SCHEDULER_CA_FILE={no_file}: No such file or directory",
        ),
        "CA is a folder": ({"HAMI_SCHEDULER_CA_FILE": tmp_path}, "Is a directory"),
        "CA is no PEM": ({"HAMI_SCHEDULER_CA_FILE": text}, "a certificate in PEM form is wanted"),
        "no client certificate": (extender, "HAMI_SCHEDULER_CERT_FILE and _KEY_FILE"),
        "another authority's client certificate": (
            extender | foreign,
            f"HAMI_SCHEDULER_CERT_FILE={tmp_path}/foreign/tls.crt",
        ),
        "certificate without key": (extender | own_cert, "must be given together"),
        "key of another certificate": (
            extender | own_cert | {"HAMI_SCHEDULER_KEY_FILE": foreign["HAMI_SCHEDULER_KEY_FILE"]},
            "they are not of each other",
        ),
        "another name": (
            {"HAMI_SCHEDULER_URL": scheduler.operator.replace("localhost", "127.0.0.2")},
            "is not for 127.0.0.2: a forwarded port is localhost",
        ),
        "a name of the cluster": (
            {"HAMI_SCHEDULER_URL": "https://hami-scheduler.hami-system.svc:9444"},
            "in the cluster alone",
        ),
        "away": (
            {"HAMI_SCHEDULER_URL": f"https://localhost:{nobody}"},
            "does `kubectl port-forward` still run?",
        ),
        "plain to TLS": (
            {"HAMI_SCHEDULER_URL": scheduler.operator.replace("https", "http")} | plain,
            "https:// is wanted",
        ),
        "a token over plain HTTP": (
            {"HAMI_SCHEDULER_URL": scheduler.probe},
            "a token is sent over https:// alone",
        ),
        "TLS to plain": (
            {"HAMI_SCHEDULER_URL": scheduler.probe.replace("http", "https")},
            "TLS is not spoken there",
        ),
        "another port of ours": (
            {"HAMI_SCHEDULER_URL": scheduler.probe} | plain,
            "answers 404 with application/json, not as hami-scheduler does",
        ),
        "a gateway": (
            {"HAMI_SCHEDULER_URL": f"{gateway}/502"} | plain,
            "answers 502 with text/html, not as hami-scheduler does",
        ),
        "a login page": (
            {"HAMI_SCHEDULER_URL": f"{gateway}/200"} | plain,
            "answers 200 with text/html, not as hami-scheduler does",
        ),
        "a proxy that is away": (
            {"HTTPS_PROXY": f"http://127.0.0.1:{nobody}"},
            "(asked through HTTPS_PROXY; NO_PROXY=localhost goes around it)",
        ),
        "no address": ({"HAMI_SCHEDULER_URL": "localhost:9444"}, "http(s)://host:port is wanted"),
        "a bad port": ({"HAMI_SCHEDULER_URL": "https://x:99999"}, "http(s)://host:port is wanted"),
        "nothing set": ({"HAMI_SCHEDULER_URL": None}, "where is the scheduler?"),
        "two tokens": ({"HAMI_SCHEDULER_TOKEN_FILE": text}, "one will do"),
        "token file missing": (
            {"HAMI_SCHEDULER_TOKEN": None, "HAMI_SCHEDULER_TOKEN_FILE": no_file},
            f"HAMI_SCHEDULER_TOKEN_FILE={no_file}: No such file or directory",
        ),
        "a token of two parts": (
            {"HAMI_SCHEDULER_TOKEN": "error: forbidden"},
            "that is no token",
        ),
        "a token with letters of ours": ({"HAMI_SCHEDULER_TOKEN": "gr\u00fcn"}, "that is no token"),
    }


def test_each_mistake_is_one_sentence_that_names_what_to_set(
    ask: Ask, mistakes: dict[str, tuple[dict[str, Any], str]]
) -> None:
    for name, (changes, wanted) in mistakes.items():
        status, output = ask("get", "devices", **changes)

        assert status in (ExitCode.FAILED, ExitCode.UNREACHABLE), (name, output)
        assert wanted in output, (name, output)
        assert output.startswith("hamictl: "), (name, output)
        assert output.count("\n") == 1, (name, output)


def test_a_token_file_is_read(ask: Ask, installed: Installed, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(installed.cluster.tokens["reader"] + "\n")

    assert ask(*READS[0], HAMI_SCHEDULER_TOKEN=None, HAMI_SCHEDULER_TOKEN_FILE=path)[0] == 0
