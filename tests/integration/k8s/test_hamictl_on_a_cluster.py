"""Every verb of hamictl against the scheduler that `k8s/base` runs, and the messages of mistakes.

On a real API server (KUBEBUILDER_ASSETS): the emulated one knows no roles.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner

from tests.conftest import Databases
from tests.control_plane import Assets
from tests.integration.k8s import installation
from tests.integration.k8s.installed import Installed, kubernetes
from tests.integration.k8s.mistakes import gateway, mistakes_of
from tests.servers import Servers, migrate


@pytest.fixture(scope="module")
def installed(
    kubernetes_assets: Assets,
    servers: Servers,
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("installed")
    with (
        installation.real(folder, kubernetes_assets) as cluster,
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
    assert "unavailable" not in output


def test_explain_and_history_answer_about_a_pod(ask: Ask, installed: Installed) -> None:
    body = {
        "metadata": {"name": "asked"},
        "spec": {"containers": [{"name": "a", "image": "none"}]},
    }
    with kubernetes(installed) as client:
        client.post("/api/v1/namespaces/default/pods", json=body)

    status, output = ask("explain", "asked")
    assert (status, "asked" in output) == (0, True), output
    status, output = ask("history", "asked", "-o", "json")
    assert (status, json.loads(output)["items"]) == (0, [])
    status, output = ask("explain", "nowhere")
    assert status == ExitCode.NOT_FOUND
    assert "not found in the cluster or the ledger" in output


def test_the_verbs_that_need_no_scheduler_work_too(ask: Ask, pod_file: Path) -> None:
    cluster = pod_file.with_name("cluster.json")
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {}}
    cluster.write_text(json.dumps({"kind": "List", "items": [node]}))

    assert ask("sql", "select count(*) from nodes", "-o", "csv") == (0, "count\n0\n")
    status, output = ask("db", "check")
    assert (status, "every rule of the ledger holds" in output) == (0, True), output
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
    status, output = ask("dead-letters", "--retry", "7", as_="operator")
    assert (status, output) == (
        ExitCode.NOT_FOUND,
        "hamictl: there is no dead letter 7\n",
    )

    status, output = ask("dead-letters", "--retry", "7", as_="reader")
    assert status == ExitCode.NOT_ALLOWED
    assert "may not update" in output


@pytest.mark.parametrize(
    ("as_", "wanted"),
    [
        ("nobody", "may not get scheduler.hami.io: ask an administrator to bind the ClusterRole"),
        ("unknown", "no token was sent"),
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
    assert "the token is invalid: " in output


def test_kube_schedulers_port_has_no_api_for_people(ask: Ask, installed: Installed) -> None:
    extender = installed.scheduler.extender
    for argv in [*READS, ("adopt",)]:
        status, output = ask(*argv, HAMI_SCHEDULER_URL=extender, HAMI_SCHEDULER_TOKEN=None)
        assert status == ExitCode.NOT_FOUND, output
        assert "is on the operators' port, with a token" in output
    assert httpx.post(f"{extender}/filter", json={}).status_code == 200


@pytest.mark.parametrize("verb", ["filter", "preempt", "bind"])
def test_no_token_binds(installed: Installed, verb: str) -> None:
    context = ssl.create_default_context(cafile=str(installed.ca))
    for token in installed.cluster.tokens.values():
        with httpx.Client(
            verify=context, headers={"Authorization": f"Bearer {token}"}, timeout=30
        ) as client:
            answer = client.post(f"{installed.scheduler.operator}/{verb}", json={})
            assert answer.status_code in (403, 404), answer.text
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
    assert httpx.post(f"{installed.scheduler.extender}/metrics").status_code == 404


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


def test_each_mistake_is_one_sentence_that_names_what_to_set(
    ask: Ask, installed: Installed, tmp_path: Path
) -> None:
    with gateway() as url:
        answers = {
            name: (*ask("get", "devices", **changes), wanted)
            for name, (changes, wanted) in mistakes_of(installed, url, tmp_path).items()
        }
    for name, (status, output, wanted) in answers.items():
        assert status in (ExitCode.FAILED, ExitCode.UNREACHABLE), (name, output)
        assert wanted in output, (name, output)
        assert output.startswith("hamictl: "), (name, output)
        assert output.count("\n") == 1, (name, output)


def test_a_token_file_is_read(ask: Ask, installed: Installed, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(installed.cluster.tokens["reader"] + "\n")

    assert ask(*READS[0], HAMI_SCHEDULER_TOKEN=None, HAMI_SCHEDULER_TOKEN_FILE=path)[0] == 0
