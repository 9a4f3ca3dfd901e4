"""Admission webhooks on both API servers: the call, the request, the effect of the answer."""

import base64
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.bodies import pod
from tests.contract.kubernetes.servers import Cluster
from tests.control_plane import make_pki
from tests.waiting import wait

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(slots=True)
class Webhook:
    """A webhook under HTTPS; `answer` makes the response, `seen` keeps the requests."""

    url: str
    ca_bundle: str
    answer: Callable[[Json], Json] = lambda request: {"allowed": True}
    seen: list[Json] = field(default_factory=list)


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    make_pki(tmp_path)
    bundle = base64.b64encode((tmp_path / "ca.crt").read_bytes()).decode()
    hook = Webhook(url="", ca_bundle=bundle)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
            hook.seen.append(review["request"])
            response = {"uid": review["request"]["uid"], **hook.answer(review["request"])}
            body = orjson.dumps(
                {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
                | {"response": response}
            )
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    hook.url = f"https://127.0.0.1:{listener.server_port}/mutate"
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
    thread.start()
    yield hook
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def register(cluster: Cluster) -> Iterator[Callable[..., None]]:
    """Register a webhook for new pods of the test's namespace, and remove it at the end."""
    names: list[str] = []
    key = "kubernetes.io/metadata.name"
    if cluster.minor < 21:
        label = {"metadata": {"labels": {key: cluster.namespace}}}
        cluster.ok(cluster.patch(f"/api/v1/namespaces/{cluster.namespace}", label))

    def apply(hook: Webhook, **fields: object) -> None:
        name = f"hook-{cluster.namespace}"
        body = {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": "pods.test.example",
                    "clientConfig": {"url": hook.url, "caBundle": hook.ca_bundle},
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "namespaceSelector": {"matchLabels": {key: cluster.namespace}},
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods"],
                        }
                    ],
                    **fields,
                }
            ],
        }
        names.append(name)
        cluster.ok(cluster.client.post(CONFIGURATIONS, json=body))

    yield apply
    for name in names:
        cluster.ok(cluster.client.delete(f"{CONFIGURATIONS}/{name}"))


def patch(*steps: Json) -> Json:
    encoded = base64.b64encode(orjson.dumps(list(steps))).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


def until_asked(cluster: Cluster, hook: Webhook) -> None:
    """Wait for the registration: the real server learns of it later."""
    query = {"dryRun": "All"}

    def is_called() -> bool:
        cluster.client.post(cluster.path("pods"), json=pod("probe"), params=query)
        return bool(hook.seen)

    wait(is_called, what="the webhook is asked")
    hook.seen.clear()


def test_a_webhook_changes_a_new_pod(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None]
) -> None:
    label = {"op": "add", "path": "/metadata/labels", "value": {"mutated": "yes"}}
    name = {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"}
    register(webhook)
    until_asked(cluster, webhook)
    webhook.answer = lambda request: patch(label, name)
    made = cluster.create("pods", pod())
    assert made["metadata"]["labels"] == {"mutated": "yes"}
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    request = webhook.seen[0]
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (request["namespace"], request["name"]) == (cluster.namespace, "a")
    assert request["oldObject"] is None
    assert request["dryRun"] is False
    assert request["object"]["kind"] == "Pod"
    assert request["object"]["spec"]["schedulerName"] == "default-scheduler"
    assert "admin" in request["userInfo"]["username"]
    assert request["options"]["kind"] == "CreateOptions"


def test_a_denial_reaches_the_client_with_its_message(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None]
) -> None:
    status = {"message": "no cards today", "code": 403}
    webhook.answer = lambda request: {"allowed": False, "status": status}
    register(webhook)
    until_asked(cluster, webhook)
    answer = cluster.client.post(cluster.path("pods"), json=pod())
    assert answer.status_code == 403
    assert answer.json()["message"] == (
        'admission webhook "pods.test.example" denied the request: no cards today'
    )
    assert cluster.client.get(cluster.path("pods", "a")).status_code == 404


def test_a_denial_without_message_or_code(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None]
) -> None:
    webhook.answer = lambda request: {"allowed": False}
    register(webhook)
    until_asked(cluster, webhook)
    answer = cluster.client.post(cluster.path("pods"), json=pod())
    assert answer.status_code == 400
    assert answer.json()["message"] == (
        'admission webhook "pods.test.example" denied the request without explanation'
    )


def test_warnings_become_headers(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None]
) -> None:
    webhook.answer = lambda request: {"allowed": True, "warnings": ['mind the "gap"']}
    register(webhook)
    until_asked(cluster, webhook)
    answer = cluster.client.post(cluster.path("pods"), json=pod())
    assert answer.headers.get_list("warning") == ['299 - "mind the \\"gap\\""']


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["Grüße aus Köln", "價格"], ["Grüße aus Köln", "價格"]),
        (["a\r\nx-injected: 1", "b\u0000", "c\ttab", "d\u0085e", "fine"], ["fine"]),
        (["twice", "twice", ""], ["twice"]),
        (["é" * 300 + str(n) for n in range(20)], ["é" * 256] * 16),
    ],
    ids=["utf8", "control", "repeated", "long"],
)
def test_odd_warnings_are_kept_dropped_or_cut_and_the_answer_arrives(
    cluster: Cluster,
    webhook: Webhook,
    register: Callable[..., None],
    given: list[str],
    kept: list[str],
) -> None:
    webhook.answer = lambda request: {"allowed": True, "warnings": given}
    register(webhook)
    until_asked(cluster, webhook)

    answer = cluster.client.post(cluster.path("pods"), json=pod())

    assert answer.status_code == 201
    values = [value.decode() for name, value in answer.headers.raw if name.lower() == b"warning"]
    assert values == [f'299 - "{text}"' for text in kept]
    assert "x-injected" not in answer.headers


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
def test_a_webhook_that_cannot_be_reached(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None], policy: str, code: int
) -> None:
    register(webhook, failurePolicy="Fail")
    until_asked(cluster, webhook)
    name = f"{CONFIGURATIONS}/hook-{cluster.namespace}"
    steps = [
        {"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "https://127.0.0.1:1/"},
        {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy},
    ]
    cluster.ok(cluster.patch(name, steps, "application/json-patch+json"))

    def is_known() -> bool:
        answer = cluster.client.post(
            cluster.path("pods"), json=pod("probe"), params={"dryRun": "All"}
        )
        return answer.status_code == code and not _asked_now(webhook)

    wait(is_known, what="the new address is known")
    answer = cluster.client.post(cluster.path("pods"), json=pod())
    assert answer.status_code == code
    if code == 500:
        assert answer.json()["reason"] == "InternalError"
        assert 'failed calling webhook "pods.test.example"' in answer.json()["message"]


def test_a_certificate_of_another_authority_is_not_trusted(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None], tmp_path: Path
) -> None:
    make_pki(tmp_path / "other")
    other = base64.b64encode((tmp_path / "other" / "ca.crt").read_bytes()).decode()
    register(webhook, clientConfig={"url": webhook.url, "caBundle": other})

    def is_refused() -> bool:
        answer = cluster.client.post(
            cluster.path("pods"), json=pod("probe"), params={"dryRun": "All"}
        )
        return answer.status_code == 500 and "certificate" in answer.json()["message"]

    wait(is_refused, what="the call fails for its certificate")
    assert webhook.seen == []


def test_object_selectors_choose_who_is_asked(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None]
) -> None:
    ignore = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    register(webhook, objectSelector={"matchExpressions": [ignore]})
    until_asked(cluster, webhook)
    body = pod("skipped")
    body["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    cluster.create("pods", body)
    assert webhook.seen == []
    cluster.create("pods", pod("asked"))
    assert [each["name"] for each in webhook.seen] == ["asked"]


def test_conditions_choose_who_is_asked(
    cluster: Cluster, webhook: Webhook, register: Callable[..., None]
) -> None:
    if cluster.minor < 30:
        pytest.skip(f"matchConditions came with Kubernetes 1.30; this is 1.{cluster.minor}")
    expression = (
        "object.spec.containers.exists(c, has(c.resources.limits) && "
        "'nvidia.com/gpu' in c.resources.limits) && request.operation == 'CREATE'"
    )
    register(webhook, matchConditions=[{"name": "asks-for-gpu", "expression": expression}])
    cluster.create("pods", pod("plain"))
    cluster.create("pods", pod("gpu", limits={"nvidia.com/gpu": 1}))
    assert [each["name"] for each in webhook.seen] == ["gpu"]


def _asked_now(webhook: Webhook) -> bool:
    asked = bool(webhook.seen)
    webhook.seen.clear()
    return asked
