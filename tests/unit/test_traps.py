"""HAMi's traps (ADR 8): every decision holds, and the cases that need the whole system."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hami_node_agent.bootstrap.connections import CONTAINER_BASE
from hami_node_agent.config.settings import Settings as AgentSettings
from hami_scheduler.settings import Settings as SchedulerSettings
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import Placement
from hamicommon.domain.requests import Selection
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import place
from hamicommon.placement.unschedulable import Refusal
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors
from jsonpatch import apply_patch

from tests.unit.hamicommon.placement.clusters import card, cards, pod, view_of
from tests.unit.hamicommon.vendors.nvidia.test_mig import NVIDIA, N, mig_card

ROOT = Path(__file__).resolve().parents[2]
ADR = ROOT / "docs" / "adr" / "0008-hamis-traps.md"
VENDORS = Vendors.from_config(DeviceConfig())


def decisions() -> dict[str, str]:
    """Number of the trap -> our decision, with all its lines."""
    text = ADR.read_text(encoding="utf-8")
    return dict(re.findall(r"^- (TRAP-\d+), (.*(?:\n  .*)*)", text, re.MULTILINE))


def named_tests(text: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", text))


def test_every_trap_is_decided_and_names_the_tests_of_its_decision() -> None:
    found = decisions()

    assert list(found) == [f"TRAP-{number}" for number in range(1, 29)]
    assert [number for number, text in found.items() if not named_tests(text)] == []


def test_every_test_that_the_decision_record_names_is_there() -> None:
    written = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", written, re.MULTILINE))

    assert named_tests(ADR.read_text(encoding="utf-8")) - there == set()


def admit_pod(limits: dict[str, str]) -> dict[str, Any]:
    given = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    verdict = mutate(given, AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler"))
    assert verdict.allowed
    changed: dict[str, Any] = apply_patch(given, verdict.patch)
    return changed


def test_one_card_and_nothing_else_is_the_whole_card() -> None:
    """TRAP-3: all memory, all cores, and no pod beside it."""
    request = pod_request(admit_pod({"nvidia.com/gpu": "1"}), VENDORS)

    found = place(request, view_of({"n": [card("g", memory_mib=8000)]}))
    assert isinstance(found, Placement)
    [share] = found.containers[0].shares
    assert (share.memory_mib, share.core_percent) == (8000, 100)

    second = place(request, view_of({"n": [card("g", memory_mib=8000, used=(1, 0, 0))]}))
    assert isinstance(second, Refusal)
    assert second.reasons == {"n": "1/1 ExclusiveDeviceAllocateConflict"}
    after_it = place(request, view_of({"n": [card("g", used=(1, 8000, 100))]}))
    assert isinstance(after_it, Refusal)
    assert after_it.reasons == {"n": "1/1 CardInsufficientMemory"}


def scheduler_settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> SchedulerSettings:
    needed = {
        "HAMI_POSTGRES_DSN": "postgresql://localhost/hami",
        "HAMI_REDIS_URL": "redis://localhost",
        "HAMI_NATS_URL": "nats://localhost",
        "HAMI_SCHEDULER_GRANT_KEY_FILE": "/key",
    }
    for name, value in (needed | variables).items():
        monkeypatch.setenv(name, value)
    return SchedulerSettings()


def test_how_long_a_node_lock_lives_is_one_setting_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TRAP-8: HAMi's chart sets HAMI_NODELOCK_EXPIRE, which a flag overrides in silence."""
    default = scheduler_settings(monkeypatch).lock_s

    assert scheduler_settings(monkeypatch, HAMI_NODELOCK_EXPIRE="7s").lock_s == default
    assert scheduler_settings(monkeypatch, HAMI_SCHEDULER_LOCK_S="7").lock_s == 7


def test_the_host_path_is_a_setting_and_the_containers_path_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TRAP-9: HAMi's HOOK_PATH is /usr/local for the plugin, /usr/local/vgpu for the monitor."""
    monkeypatch.setenv("HAMI_NATS_URL", "nats://localhost")
    monkeypatch.setenv("HAMI_NODE_AGENT_NODE_NAME", "n")
    monkeypatch.setenv("HOOK_PATH", "/usr/local/vgpu")
    monkeypatch.setenv("HAMI_NODE_AGENT_HOOK_PATH", "/host")

    found = AgentSettings()

    assert found.hook_path == Path("/host")
    assert PurePosixPath("/usr/local/vgpu") == CONTAINER_BASE


def mig_answer(request: Any, *usages: Any) -> Placement | Refusal:
    view = ClusterView({"NVIDIA": NVIDIA.rules})
    view.set_node(N, [CardState(usage, 1) for usage in usages])
    return place(request, view)


def test_a_mig_card_takes_as_many_slices_as_it_registers() -> None:
    """TRAP-18: the kubelet counts `deviceSplitCount` replicas, the engine the card's instances."""
    seven, eight = (pod(cards(count=n, memory_mib=4000)) for n in (7, 8))

    assert isinstance(mig_answer(seven, mig_card()), Placement)
    refused = mig_answer(eight, mig_card())
    assert isinstance(refused, Refusal)
    assert refused.reasons == {
        N: "1/1 CardMigTopologyInfeasible, 7/1 AllocatedCardsInsufficientRequest"
    }


def test_more_slices_may_be_dropped_at_a_numa_node_than_there_are_cards() -> None:
    """TRAP-24: seven slices of one MIG card are begun again on the other NUMA node."""
    asked = pod(cards(count=8, memory_mib=4000), selection=Selection(numa_bind=True))

    refused = mig_answer(asked, mig_card("a"), mig_card("b", index=1, numa=1))

    assert isinstance(refused, Refusal)
    assert refused.reasons == {
        N: ("2/2 CardMigTopologyInfeasible, 7/2 AllocatedCardsInsufficientRequest, 7/2 NumaNotFit")
    }
