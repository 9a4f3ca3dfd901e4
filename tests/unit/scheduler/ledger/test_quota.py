"""Slices in a namespace's quota, and the sentence of a refusal by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hami_scheduler.ledger.quota import (
    cards_beyond,
    quota_amounts,
    quota_limits,
    quota_reasons,
    quota_short,
)
from hami_scheduler.watch.quotas import QuotaSync
from hamicommon.device_config import DeviceConfig, NvidiaConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest, Role
from hamicommon.errors import QuotaConflict
from hamicommon.explain.sentences import quota_sentence
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.vendors.registry import Vendors

from tests.unit.devices import a_device

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
CHIP = "iluvatar.ai/BI-V150.vMem"


def grant(
    role: Role, memory_mib: int, core_percent: int, *, card: str = "0", vendor: str = "NVIDIA"
) -> ContainerGrant:
    share = DeviceShare(
        uuid=GpuUuid(card), vendor=vendor, memory_mib=memory_mib, core_percent=core_percent
    )
    return ContainerGrant(index=0, name=role, role=role, shares=(share,))


@pytest.mark.parametrize(
    ("containers", "amounts"),
    [
        pytest.param(
            [grant("init", 500, 10), grant("app", 300, 20)],
            {MEMORY: 500, CORES: 20},
            id="init-and-app-on-one-card-count-as-the-greater",
        ),
        pytest.param(
            [grant("init", 500, 10), grant("app", 300, 20), grant("app", 300, 20)],
            {MEMORY: 600, CORES: 40},
            id="apps-count-together-init-or-not",
        ),
        pytest.param(
            [grant("init", 500, 10), grant("init", 400, 20)],
            {MEMORY: 500, CORES: 20},
            id="inits-count-as-the-greatest",
        ),
        pytest.param(
            [grant("app", 500, 10), grant("app", 300, 20, card="1")],
            {MEMORY: 800, CORES: 30},
            id="cards-count-together",
        ),
        pytest.param([grant("app", 100, 0)], {MEMORY: 100}, id="nothing-taken-counts-nothing"),
        pytest.param(
            [grant("app", 512, 5, vendor="BI-V150")],
            {CHIP: 512, "iluvatar.ai/BI-V150.vCore": 5},
            id="another-vendor-in-mib",
        ),
        pytest.param([grant("app", 512, 5, vendor="gone")], {}, id="a-vendor-no-longer-configured"),
    ],
)
def test_amounts(containers: list[ContainerGrant], amounts: dict[str, int]) -> None:
    assert quota_amounts(containers, VENDORS) == amounts


@pytest.mark.parametrize(
    ("resource", "text", "limit"),
    [
        pytest.param(MEMORY, "1000", 1000, id="plain"),
        pytest.param(MEMORY, "1k", 1000, id="written-with-a-suffix"),
        pytest.param(MEMORY, "0", 0, id="zero-lets-nothing-in"),
        pytest.param(CORES, "1500m", None, id="a-fraction-is-skipped"),
        pytest.param(CORES, "many", None, id="no-quantity-is-skipped"),
        pytest.param(CHIP, "4", 1024, id="units-of-256-mib"),
        pytest.param("iluvatar.ai/BI-V150.vCore", "4", 4, id="cores-have-no-factor"),
    ],
)
def test_limits(resource: str, text: str, limit: int | None) -> None:
    found = quota_limits(
        {"spec": {"hard": {f"limits.{resource}": text, "limits.cpu": "x"}}}, VENDORS
    )

    assert found.limits == ({} if limit is None else {resource: limit})
    assert list(found.mistakes) == ([f"limits.{resource}"] if limit is None else [])


def test_counts_and_requests_are_no_limits_of_ours() -> None:
    hard = {"limits.nvidia.com/gpu": "1", "requests.nvidia.com/gpumem": "1"}

    found = quota_limits({"spec": {"hard": hard}}, VENDORS)

    assert found.limits == {}
    assert found.mistakes.keys() == hard.keys()


def quota(name: str, **hard: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name}, "spec": {"hard": hard}}


class _Nothing:
    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        raise AssertionError

    async def list_uses(self) -> list[Any]:
        raise AssertionError


async def _wait_for_nothing() -> None:
    pass


def test_several_quotas_of_a_namespace_hold_all_at_once() -> None:
    """HAMi keeps the last one written only (protocol 8.3, 18)."""
    sync = QuotaSync(
        store=_Nothing(),
        limits_of=lambda item: quota_limits(item, VENDORS),
        synced=lambda: True,
        on_written=_wait_for_nothing,
    )
    strict, loose = (
        quota("a", **{f"limits.{MEMORY}": "1000"}),
        quota("b", **{f"limits.{MEMORY}": "2000", f"limits.{CORES}": "50"}),
    )
    sync.on_upsert(strict, None)
    sync.on_upsert(loose, None)
    assert sync.limits("ns") == {MEMORY: 1000, CORES: 50}

    sync.on_delete(strict)
    assert sync.limits("ns") == {MEMORY: 2000, CORES: 50}


def card(uuid: str, index: int, memory_mib: int = 1000, **used: Any) -> CardState:
    device = a_device(uuid, index=index, slots=2, memory_mib=memory_mib)
    return CardState(DeviceUsage(device=device, **used), 1)


def asking(**amounts: Any) -> PodRequest:
    wanted = DeviceRequest(vendor="NVIDIA", count=1, **amounts)
    return PodRequest(
        uid=PodUid("u"),
        namespace="ns",
        name="p",
        containers=(ContainerRequest(name="c", role="app", requests=(wanted,)),),
    )


def test_cards_that_an_earlier_rule_refuses_keep_their_reason() -> None:
    view = ClusterView()
    view.set_node(NodeName("a"), [card("a0", 0), card("a1", 1, used_slots=2), card("a2", 2)])
    view.set_node(NodeName("b"), [card("b0", 0)])

    names = [NodeName("a"), NodeName("b"), NodeName("cpu")]
    assert quota_reasons(asking(memory_mib=10), view, names, MEMORY, VENDORS) == {
        "a": "1/3 CardTimeSlicingExhausted, 2/3 ResourceQuotaNotFit",
        "b": "1/1 ResourceQuotaNotFit",
        "cpu": "node unregistered",
    }


def test_a_percentage_is_beyond_the_quota_on_large_cards_only() -> None:
    view = ClusterView()
    view.set_node(NodeName("a"), [card("large", 0, 4000), card("small", 1, 1000)])
    conflict = QuotaConflict("ns", MEMORY, limit=3000, used=2000, wanted=4000)

    assert cards_beyond(asking(memory_percent=100), view, conflict, VENDORS) == {"large"}
    assert cards_beyond(asking(memory_mib=1500), view, conflict, VENDORS) == frozenset()


def test_the_refusal_names_the_resource_and_what_is_short_in_its_own_units() -> None:
    conflict = QuotaConflict("ns", CHIP, limit=1024, used=512, wanted=640)
    assert quota_sentence(quota_short(conflict, VENDORS)).startswith(
        f"namespace ns has 2 of its quota of 4 limits.{CHIP} left and the pod wants 2.5: "
        "0.5 (128 MiB) short"
    )


def test_a_refusal_by_cores_has_no_unit() -> None:
    conflict = QuotaConflict("ns", "nvidia.com/gpucores", limit=100, used=80, wanted=30)

    assert "the pod wants 30: 10 short" in quota_sentence(quota_short(conflict, VENDORS))


@pytest.mark.parametrize(
    ("factor", "limit", "used", "wanted", "fits"),
    [
        pytest.param(1, 2000, 1000, 500, True, id="within"),
        pytest.param(1, 2000, 1000, 1500, False, id="beyond"),
        pytest.param(2, 2000, 1000, 1000, True, id="factor-within"),
        pytest.param(2, 2000, 1000, 5000, False, id="factor-beyond"),
    ],
)
def test_the_vectors_of_the_sheet(
    factor: int, limit: int, used: int, wanted: int, fits: bool
) -> None:
    """Sheet 3, "Quota manager rules": used and request in MiB, the limit in units."""
    vendors = Vendors.from_config(DeviceConfig(nvidia=NvidiaConfig(memory_factor=factor)))
    limits = quota_limits({"spec": {"hard": {f"limits.{MEMORY}": str(limit)}}}, vendors).limits

    assert (used + quota_amounts([grant("app", wanted, 0)], vendors)[MEMORY] <= limits[MEMORY]) is (
        fits
    )
