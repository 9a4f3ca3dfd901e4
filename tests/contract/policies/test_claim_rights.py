"""The rights of the component `dra`: our clients use each, and a call fails without it.

Those of `k8s/base` are compared likewise on the whole installation
(`tests/e2e_manifests/test_day_two.py`).
"""

import asyncio
from pathlib import Path

import yaml
from hami_node_agent.adapters.kubernetes.resource_api import ResourceClaims, ResourceSlices
from hami_scheduler.adapters.kubernetes import KubernetesClaimApi, KubernetesTemplateApi
from hamicommon.dra.shapes import templates_path
from hamicommon.k8s.client import open_kube_api
from hamicommon.k8s.informer import Informer

from tests.contract.policies.guarded import SYSTEM, TENANTS, Guarded, User, is_allowed
from tests.contract.policies.test_slices import COMPONENT, a_slice, agent
from tests.e2e_manifests.rights import Call, Mutants, Right, calls, denied_without, rights_of
from tests.waiting import eventually, wait

__all__ = ["agent"]

CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{TENANTS}/resourceclaims"


BINDING = "resourceclaims/binding"
"""No call uses it: the API server requires it if a status changes an allocation."""


def list_granted_rights() -> set[Right]:
    """Rights that the component grants, except `BINDING`."""
    objects = list(yaml.safe_load_all((COMPONENT / "access.yaml").read_text()))
    rules = {each["metadata"]["name"]: each["rules"] for each in objects if "rules" in each}
    return {
        right
        for each in objects
        for subject in each.get("subjects", ())
        for right in rights_of(subject["name"], "", rules[each["roleRef"]["name"]])
        if right.resource != BINDING
    }


def kubeconfig_of(user: User, guarded: Guarded, path: Path) -> Path:
    """The administrator's, with the account's token."""
    config = yaml.safe_load(guarded.kubeconfig.read_text())
    token = dict(user.headers)["authorization"].removeprefix("Bearer ")
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path


async def use_all(agents: Path, schedulers: Path) -> None:
    """Make every call of both services on claims and slices, by their own clients."""
    async with open_kube_api(schedulers) as api:
        claims = KubernetesClaimApi(api)
        claim = await claims.get(TENANTS, "of-the-driver")
        await claims.set_status(claim, {"allocation": None, "reservedFor": None})
        templates = KubernetesTemplateApi(api)
        seen = Informer(api, templates_path(), on_upsert=lambda *_: None, on_delete=lambda _: None)
        following = asyncio.create_task(seen.run())
        made = await templates.create(TENANTS, {"metadata": {"name": "t"}, "spec": {"spec": {}}})
        await eventually(lambda: (TENANTS, "t") in seen.store)
        await templates.delete(TENANTS, "t", uid=made["metadata"]["uid"])
        await eventually(lambda: (TENANTS, "t") not in seen.store)
        following.cancel()
    async with open_kube_api(agents) as api:
        await ResourceClaims(api).claim(TENANTS, "of-the-driver")
        slices = ResourceSlices(api, "node-a")
        following = asyncio.create_task(slices.run(lambda: None))
        await eventually(lambda: slices.synced)
        await slices.write(a_slice("mine"))
        await eventually(lambda: "mine" in slices.slices)
        found = slices.slices["mine"]
        pool = {**found["spec"]["pool"], "generation": 2}
        await slices.write({**found, "spec": {**found["spec"], "pool": pool}})
        await slices.remove("mine")
        await eventually(lambda: "mine" not in slices.slices)
        following.cancel()


async def test_each_right_of_the_driver_is_used_and_a_call_fails_without_it(
    guarded: Guarded, agent: User, tmp_path: Path
) -> None:
    claim = {"metadata": {"name": "of-the-driver"}, "spec": {"devices": {}}}
    assert is_allowed(guarded.admin.post(CLAIMS, claim))
    # As kube-scheduler does; our scheduler takes it off again.
    path = f"{CLAIMS}/of-the-driver"
    allocated = {"status": {"allocation": {"devices": {}}}}
    assert is_allowed(guarded.admin.patch(f"{path}/status", allocated))
    scheduler = guarded.account(SYSTEM, "hami-scheduler")
    wait(lambda: scheduler.get(path).status_code == 200, "the scheduler's role")

    await use_all(
        kubeconfig_of(agent, guarded, tmp_path / "agent"),
        kubeconfig_of(scheduler, guarded, tmp_path / "scheduler"),
    )

    assert "allocation" not in guarded.admin.get(path).json().get("status", {})
    rights = list_granted_rights()
    assert len(rights) == 12

    def list_calls() -> set[Call]:
        return {c for c in calls(guarded.audit_log) if any(c.needs(right) for right in rights)}

    def list_unused_rights() -> list[str]:
        used = list_calls()
        return sorted(str(r) for r in rights if not any(call.needs(r) for call in used))

    # The log has a call when it has ended.
    wait(
        lambda: not list_unused_rights(),
        "every right is in the audit log",
        why=lambda: str(list_unused_rights()),
    )
    missed = denied_without(Mutants(guarded.admin.client), rights, rights, list_calls(), wait)
    assert missed >= len(rights)
