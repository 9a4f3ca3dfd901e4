"""Who may ask for and write what of our cards' claims, by the component `dra-lead`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.dra.devices import DRIVER, LEDGER_TAINT
from hamicommon.dra.requests import DEVICE_CLASS
from hamicommon.k8s.types import Json
from hamilocal.servers.control_plane.assets import Assets

from tests.contract.policies.guarded import (
    PLURALS,
    SYSTEM,
    TENANTS,
    Guarded,
    User,
    allowed,
    refused,
)
from tests.waiting import wait

COMPONENT = Path(__file__).parents[3] / "k8s" / "components" / "dra-lead"
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/{TENANTS}/resourceclaims"
TEMPLATES = f"{GROUP}/namespaces/{TENANTS}/resourceclaimtemplates"
MERGE = "application/merge-patch+json"
EVERY = {"operator": "Exists"}
LEDGER = {"key": LEDGER_TAINT, "operator": "Exists"}
OTHER = {"key": "maintenance", "operator": "Exists"}


def spec(*tolerations: Json, device_class: str = DEVICE_CLASS, alternatives: bool = False) -> Json:
    part = {"deviceClassName": device_class, "tolerations": list(tolerations)}
    request: Json = {"name": "gpu", "exactly": part}
    if alternatives:
        request = {"name": "gpu", "firstAvailable": [{"name": "one", **part}]}
    return {"devices": {"requests": [request]}}


def claim(name: str, wanted: Json | None = None) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": spec() if wanted is None else wanted,
    }


def template(name: str, wanted: Json) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": wanted},
    }


def allocation(driver: str = DRIVER) -> Json:
    return {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "gpu", "driver": driver, "pool": "node-a", "device": "gpu-1"}
                ]
            },
            "allocationTimestamp": "2026-01-01T00:00:00Z",
        }
    }


def holder(uid: str) -> Json:
    return {"reservedFor": [{"resource": "pods", "name": uid, "uid": uid}]}


@dataclass(frozen=True, kw_only=True)
class Users:
    """Who asks; the tenant may write every field of claims by RBAC."""

    ledger: User
    tenant: User
    scheduler: User
    controller: User

    def status(self, user: User, name: str, change: Mapping[str, Any]) -> Any:
        path = f"{CLAIMS}/{name}/status"
        return user.ask("PATCH", path, {"status": dict(change)}, media=MERGE)


@pytest.fixture(scope="module")
def users(guarded: Guarded, kubernetes_assets: Assets) -> Users:
    if kubernetes_assets.version < (1, 36):
        pytest.skip("parts of devices are in Kubernetes 1.36 and newer")
    for file in ("access.yaml", "policy.yaml"):
        for body in yaml.safe_load_all((COMPONENT / file).read_text()):
            guarded.make(PLURALS[body["kind"]], body)
    rules = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": [
                "resourceclaims",
                "resourceclaimtemplates",
                "resourceclaims/status",
                "resourceclaims/binding",
            ],
            "verbs": ["*"],
        },
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "verbs": ["*"],
        },
    ]
    guarded.make(PLURALS["ClusterRole"], {"metadata": {"name": "claims-all"}, "rules": rules})
    found = Users(
        ledger=guarded.account(SYSTEM, "hami-scheduler", node="node-a"),
        tenant=guarded.person("tom"),
        scheduler=guarded.person("system:kube-scheduler"),
        controller=guarded.account("kube-system", "resource-claim-controller"),
    )
    guarded.bind("claims-all", "User", "tom")
    guarded.bind("claims-all", "ServiceAccount", "kube-system:resource-claim-controller")
    guarded.bind("claims-all", "User", "system:kube-scheduler")
    wait(lambda: found.ledger.get(CLAIMS).status_code == 200, "the ledger's role")
    probe = claim("probe", spec(LEDGER))
    wait(
        lambda: found.tenant.post(CLAIMS, probe, dryRun="All").status_code == 403,
        "the policy of tolerations holds",
    )
    allowed(guarded.admin.post(CLAIMS, claim("canary")))
    wait(
        lambda: found.status(found.tenant, "canary", allocation()).status_code == 403,
        "the policy of allocations holds",
    )
    return found


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (spec(LEDGER), "may not tolerate the taint gpu.hami.io/ledger"),
        (spec(OTHER, LEDGER, device_class="other"), "may not tolerate the taint"),
        (spec(LEDGER, alternatives=True), "may not tolerate the taint"),
        (spec(EVERY), "may not tolerate every taint"),
        (spec(EVERY, alternatives=True), "may not tolerate every taint"),
    ],
)
def test_nobody_tolerates_the_ledger_s_taint(users: Users, wanted: Json, text: str) -> None:
    assert refused(users.tenant.post(CLAIMS, claim("no", wanted)), text)
    assert refused(users.tenant.post(TEMPLATES, template("no", wanted)), text)


@pytest.mark.parametrize(
    "wanted",
    [
        spec(),
        spec(OTHER),
        spec(EVERY, device_class="other.example.com"),
        spec(OTHER, alternatives=True),
        {"devices": {}},
    ],
)
def test_other_claims_are_as_they_were(users: Users, guarded: Guarded, wanted: Json) -> None:
    for path, body in ((CLAIMS, claim("yes", wanted)), (TEMPLATES, template("yes", wanted))):
        assert allowed(users.tenant.post(path, body))
        assert allowed(guarded.admin.delete(f"{path}/yes"))


def test_our_cards_are_allocated_by_the_ledger_alone(users: Users, guarded: Guarded) -> None:
    allowed(users.tenant.post(CLAIMS, claim("mine")))
    for user in (users.tenant, users.scheduler, users.controller):
        answer = users.status(user, "mine", allocation() | holder("p"))
        assert refused(answer, "are allocated by hami-scheduler alone")
    assert allowed(users.status(users.ledger, "mine", allocation() | holder("p")))
    assert allowed(guarded.admin.ask("DELETE", f"{CLAIMS}/mine"))


def test_holders_are_noted_and_taken_away_by_the_control_plane_alone(users: Users) -> None:
    allowed(users.tenant.post(CLAIMS, claim("held")))
    allowed(users.status(users.ledger, "held", allocation() | holder("p")))
    gone = {"allocation": None, "reservedFor": None}
    for change in (holder("q"), {"reservedFor": None}, gone):
        answer = users.status(users.tenant, "held", change)
        assert refused(answer, "who holds devices of driver gpu.hami.io")
    assert allowed(users.status(users.scheduler, "held", holder("q")))
    assert allowed(users.status(users.controller, "held", gone))
    assert allowed(users.status(users.ledger, "held", allocation() | holder("p")))
    assert allowed(users.status(users.scheduler, "held", gone))


def test_claims_of_other_drivers_are_nobody_s_business_here(users: Users) -> None:
    allowed(users.tenant.post(CLAIMS, claim("theirs", spec(device_class="other.example.com"))))
    change = allocation("other.example.com") | holder("p")
    assert allowed(users.status(users.tenant, "theirs", change))
    assert allowed(users.status(users.tenant, "theirs", {"allocation": None, "reservedFor": None}))


def test_an_administrator_repairs_what_is_wrong(users: Users, guarded: Guarded) -> None:
    allowed(users.tenant.post(CLAIMS, claim("broken")))
    assert allowed(users.status(guarded.admin, "broken", allocation()))
    assert allowed(users.status(guarded.admin, "broken", {"allocation": None}))


def test_the_ledger_protects_what_it_allocates(users: Users) -> None:
    allowed(users.tenant.post(CLAIMS, claim("kept")))
    change = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    assert allowed(users.ledger.ask("PATCH", f"{CLAIMS}/kept", change, media=MERGE))
