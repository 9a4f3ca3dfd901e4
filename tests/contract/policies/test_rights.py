"""Rights of each service account at the API server, tried with its token."""

import pytest

from tests.contract.policies.guarded import SYSTEM, TENANTS, Guarded

ACCOUNTS = (
    "hami-scheduler",
    "hami-node-agent",
    "hami-webhook",
    "hami-metrics",
    "hami-migrations",
    "hami-webhook-certificate",
)
UNAUTHORIZED_CALLS = (
    ("GET", f"/api/v1/namespaces/{TENANTS}/secrets"),
    ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets"),
    ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/hami-grant-key"),
    ("POST", f"/api/v1/namespaces/{TENANTS}/pods"),
    ("POST", f"/api/v1/namespaces/{SYSTEM}/pods"),
    ("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/hami-scheduler/token"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("DELETE", "/api/v1/nodes/any"),
    ("POST", f"/api/v1/namespaces/{TENANTS}/pods/any/exec"),
    (
        "DELETE",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/hami-node-agent-pods",
    ),
)
OPENED = {
    "hami-scheduler": (
        "/api/v1/pods",
        "/api/v1/nodes",
        "/api/v1/nodes/node-r",
        "/api/v1/resourcequotas",
    ),
    "hami-node-agent": ("/api/v1/pods", "/api/v1/nodes/node-r"),
    "hami-migrations": (f"/api/v1/namespaces/{SYSTEM}/pods",),
    "hami-webhook-certificate": (
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook",
    ),
}
READS = sorted({path for paths in OPENED.values() for path in paths})


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_opens_what_its_service_calls_and_nothing_else(
    guarded: Guarded, name: str
) -> None:
    guarded.node("node-r")
    account = guarded.account(SYSTEM, name, node="node-r")

    for method, path in UNAUTHORIZED_CALLS:
        answer = account.ask(method, path, {} if method == "POST" else None)
        assert answer.status_code == 403, (method, path, answer.text)
        assert "ValidatingAdmissionPolicy" not in answer.text
    for path in READS:
        answer = account.get(path)
        everywhere = "/api/v1/pods" in OPENED.get(name, ()) and path.endswith("/pods")
        opened = everywhere or path in OPENED.get(name, ())
        assert answer.status_code in ((200, 404) if opened else (403,)), (path, answer.text)
