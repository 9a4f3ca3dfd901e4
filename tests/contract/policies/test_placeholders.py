"""The rights of the component `scaling`: placeholders in hami-system, and no other pod."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import yaml
from hami_scheduler.ports.scaling import ScaleWish
from hami_scheduler.scaling.placeholders import Placeholders
from hamicommon.domain.requests import HostRequest
from hamicommon.errors import Forbidden
from hamicommon.k8s.client import open_kube_api
from hamicommon.scaling.node_types import NodeType

from tests.contract.policies.guarded import PLURALS, SYSTEM, TENANTS, Guarded
from tests.contract.policies.test_claim_rights import kubeconfig_of
from tests.waiting import eventually

ACCESS = Path(__file__).parents[3] / "k8s" / "components" / "scaling" / "access.yaml"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
WISH = ScaleWish(
    id=7,
    type="t",
    number=1,
    pods=(),
    host=HostRequest(),
    is_asked=False,
    reason="",
    wanted_at=datetime(2026, 11, 30, tzinfo=UTC),
    age_s=0.0,
)
KIND = NodeType(name="t", labels={}, selector={"pool": "t"}, cards=())


async def test_the_scheduler_makes_and_ends_placeholders_in_its_namespace_alone(
    guarded: Guarded, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    scheduler = guarded.account(SYSTEM, "hami-scheduler")
    kubeconfig = kubeconfig_of(scheduler, guarded, tmp_path / "kubeconfig")
    async with open_kube_api(kubeconfig) as api:
        ours = Placeholders(api, namespace=SYSTEM, pod_name="", image="sleeps")
        theirs = Placeholders(api, namespace=TENANTS, pod_name="", image="sleeps")
        with pytest.raises(Forbidden):
            await ours.create(WISH, KIND, ())
        for body in yaml.safe_load_all(ACCESS.read_text()):
            path = CLASSES if body["kind"] == "PriorityClass" else PLURALS[body["kind"]]
            path = path.format(body["metadata"].get("namespace"))
            guarded.make(path, body)
            request.addfinalizer(
                partial(guarded.admin.delete, f"{path}/{body['metadata']['name']}")
            )

        async def is_known() -> bool:
            try:
                return await ours.explain("of-no-pod") == ""
            except Forbidden:
                return False

        await eventually(is_known, "the role")
        await ours.create(WISH, KIND, ["node-p"])
        with pytest.raises(Forbidden):
            await theirs.create(WISH, KIND, ())

        [made] = await ours.all()
        assert made["spec"]["priority"] == -1
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{made['metadata']['name']}"
        guarded.admin.patch(f"{path}/status", {"status": {"phase": "Running"}})
        await ours.delete(made)
        assert await ours.all() == []
        await ours.delete(made)
