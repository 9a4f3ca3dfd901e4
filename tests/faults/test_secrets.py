"""A system at DEBUG whose stores are killed and whose callers are hostile repeats no secret.

The collector of its spans does not exist.
"""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import running_system
from tests.e2e.secrets import leaks, secrets_of, written_by
from tests.e2e.system import System, a_pod, slice_of, wait

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MARK = "eyJtYXJrZWQiOiJ4In0.c3dvcmRmaXNoLW1hcmtlZA.c2lnbmF0dXJl"
"""A token, as a caller sends it."""
TENANT = "swordfish-of-a-tenant"
STORES = ("postgres", "redis", "nats")


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    variables = {
        "HAMI_TELEMETRY_LOG_LEVEL": "DEBUG",
        "HAMI_TELEMETRY_OTLP_ENDPOINT": "http://collector:swordfish@127.0.0.1:1",
    }
    with running_system("emulator", environment=variables) as found:
        yield found


def answers(system: System) -> dict[str, str]:
    """Return the answer of each page and call to a caller with a token and a query."""
    described = system.described
    metrics = str(described["metrics_url"]).removesuffix("/metrics")
    urls = [
        *(f"{described['scheduler_url']}{path}" for path in ("/v1/allocations", "/filter", "/no")),
        *(f"{metrics}{path}" for path in ("/metrics", "/api/v1/questions/nodes")),
        *(f"{described['pages_url']}{path}" for path in ("/", "/pending", "/pods/default/x")),
        str(described["webhook_url"]),
    ]
    found = {}
    headers = {"Authorization": f"Bearer {MARK}", "traceparent": MARK}
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with httpx.Client(verify=context, headers=headers, timeout=30) as client:
        for url in urls:
            for method in ("GET", "POST"):
                with contextlib.suppress(httpx.TransportError):
                    query = {"access_token": MARK, "password": TENANT}
                    answer = client.request(method, url, params=query, content=b'{"x": ')
                    found[f"{method} {url} {len(found)}"] = answer.text
    return found


def a_pod_with_a_secret(name: str) -> dict[str, object]:
    pod = a_pod(name, slice_of(1000), annotations={"hami.io/vgpu-devices-to-allocate": "{"})
    [container] = pod["spec"]["containers"]
    container["env"] = [{"name": "API_TOKEN", "value": TENANT}]
    return pod


def test_a_collector_that_is_away_costs_a_line(system: System) -> None:
    system.run(a_pod("untraced", slice_of(1000)))

    wait(
        lambda: any("Failed to export spans" in text for text in written_by(system).values()),
        "a line about spans that are dropped",
    )

    for name, text in written_by(system).items():
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        of_spans = [line for line in lines if "Failed to export spans" in str(line.get("message"))]
        assert len(of_spans) <= 1, name
        assert not [line for line in lines if "Transient error" in str(line)], name


def test_nothing_that_is_secret_is_logged_traced_or_answered(system: System) -> None:
    secrets = {
        **secrets_of(system),
        "a caller's token": MARK,
        "a tenant's variable": TENANT,
        "the collector's login": "collector:swordfish",
    }
    system.run(a_pod_with_a_secret("runs"))
    refused = a_pod_with_a_secret("refused")
    refused["spec"]["hostPID"] = True  # type: ignore[index]  # a pod's JSON
    answered = {"the refusal": system.create(refused).text, **answers(system)}
    for store in STORES:
        pid = wait(lambda store=store: system.pid_of(store), f"{store} to be ready")
        os.kill(pid, signal.SIGKILL)
        answered |= answers(system)
        system.create(a_pod_with_a_secret(f"without-{store}"))
        wait(
            lambda store=store, pid=pid: system.pid_of(store) not in (None, pid),
            f"{store} to be back",
        )
    system.wait_for_phase("without-nats", "Running")

    texts = written_by(system)
    assert '"level":"DEBUG"' in texts["node-agent-node-0.log"] + texts["webhook.log"]
    # The emulated API server and containers are not services of ours, and may print anything.
    assert leaks(secrets, {**texts, **answered}) == []


@pytest.mark.parametrize(
    ("service", "variables"),
    [
        ("hami-metrics", {"HAMI_POSTGRES_DSN": "postgresql://hami:12/swordfish@db/hami"}),
        ("hami-scheduler", {"HAMI_REDIS_URL": "redis://:sword/swordfish@redis:6379"}),
    ],
    ids=["ledger", "locks"],
)
def test_a_service_that_does_not_start_repeats_no_password(
    service: str, variables: dict[str, str], tmp_path: Path
) -> None:
    usual = {
        "HAMI_POSTGRES_DSN": "postgresql://hami:swordfish@127.0.0.1:1/hami",
        "HAMI_REDIS_URL": "redis://:swordfish@127.0.0.1:1/0",
        "HAMI_NATS_URL": "nats://hami:swordfish@127.0.0.1:1",
        "HAMI_METRICS_HTTP_BIND": "127.0.0.1:0",
        "HAMI_SCHEDULER_HTTP_BIND": "127.0.0.1:0",
        "KUBECONFIG": str(tmp_path / "none"),
    }
    done = subprocess.run(
        [Path(sys.executable).parent / service],
        env={"PATH": os.environ["PATH"], **usual, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    for text in (done.stdout, done.stderr):
        assert "Traceback" not in text
        assert "swordfish" not in text
