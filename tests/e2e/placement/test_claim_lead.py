"""ResourceClaims that the ledger allocates: by its policies, and kube-scheduler honours them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hamicommon.dra.devices import device_name
from hamicommon.k8s.annotations import FRONT_END
from hamilocal.servers.control_plane.assets import find_assets

from tests import measured
from tests.e2e.claims import CLAIMS, SLEEPS, Leading, claiming, leading_system
from tests.e2e.system import a_pod, slice_of, wait

pytestmark = pytest.mark.e2e

CARD_MIB = 81920
MERGE = {"content-type": "application/merge-patch+json"}


@pytest.fixture(scope="module")
def running(cluster_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leading]:
    if cluster_kind != "real":
        pytest.skip("the emulated API server has no resource.k8s.io; --cluster=real has")
    folder = Path(os.environ["KUBEBUILDER_ASSETS"])
    version = find_assets(folder).version
    if version < (1, 36):
        pytest.skip(f"Kubernetes {version[0]}.{version[1]} has no parts of devices, 1.36 has")
    if not (folder / "kube-controller-manager").exists():
        pytest.skip(f"{folder} (KUBEBUILDER_ASSETS) holds no kube-controller-manager")
    home = tmp_path_factory.mktemp("leading")
    with leading_system(home, "--nodes", "3", "--gpus", "2") as leading:
        yield leading


@pytest.fixture
def leading(running: Leading) -> Iterator[Leading]:
    yield running
    running.system.check_invariants()
    running.clear()


def test_a_claim_is_what_the_ledger_granted(leading: Leading) -> None:
    began = time.monotonic()
    leading.pod("one", memory="4096Mi", cores="30")
    pod = leading.system.wait_for_phase("one", "Running")
    took_s = time.monotonic() - began
    [card] = leading.granted("one")

    [result] = leading.results("one")
    assert result["device"] == device_name(card)
    assert result["consumedCapacity"] == {"memory": "4Gi", "cores": "30", "slots": "1"}
    row = leading.system.sql(
        "SELECT origin, node FROM allocations WHERE ended_at IS NULL AND pod_name = 'one'"
    )
    assert row == f"claim|{pod['spec']['nodeName']}"
    first = leading.system.sql(
        "SELECT detail->'claims'->0->>'share_id' FROM allocation_events"
        f" WHERE pod_uid = '{pod['metadata']['uid']}' AND sequence = 1"
    )
    assert first == result["shareID"]
    assert leading.differs() is None
    leading.system.delete("one")
    wait(lambda: not leading.results("one"), "the claim to be free")
    measured.note(f"lead: {took_s:.2f} s from the claim to Running")


POLICIES = {
    "binpack-binpack": ("binpack", "binpack"),
    "binpack-spread": ("binpack", "spread"),
    "spread-binpack": ("spread", "binpack"),
    "spread-numa": ("spread", "numa"),
}
SIZES = [(30000, 10), (20000, 40), (50000, 0), (8000, 20), (40000, 30)]


@pytest.mark.parametrize("policy", POLICIES)
def test_claims_are_placed_as_limits_are(leading: Leading, policy: str) -> None:
    node, gpu = POLICIES[policy]
    chosen = {"hami.io/node-scheduler-policy": node, "hami.io/gpu-scheduler-policy": gpu}
    by_limits = []
    for number, (mib, cores) in enumerate(SIZES):
        leading.create(a_pod(f"l{number}", slice_of(mib, cores), annotations=chosen))
        by_limits.append(leading.granted(f"l{number}"))
    leading.clear()
    by_claims = []
    for number, (mib, cores) in enumerate(SIZES):
        leading.pod(f"c{number}", chosen, memory=f"{mib}Mi", cores=str(cores))
        by_claims.append(leading.granted(f"c{number}"))
    assert by_claims == by_limits


def test_old_manifests_with_policies_become_claims_with_the_cards_of_limits(
    leading: Leading,
) -> None:
    chosen = {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"}
    found = {}
    for way in ("limits", "dra"):
        found[way] = []
        for number, (mib, cores) in enumerate(SIZES):
            name = f"{way}{number}"
            annotations = {**chosen, FRONT_END: way}
            leading.create(
                a_pod(name, slice_of(mib, cores), annotations=annotations, command=SLEEPS)
            )
            found[way].append(leading.granted(name))
            origin = f"SELECT DISTINCT origin FROM allocations WHERE pod_name = '{name}'"
            assert leading.system.sql(origin) == {"limits": "scheduled", "dra": "claim"}[way]
        leading.clear()
    assert found["dra"] == found["limits"]


def test_percentages_counts_and_selections_of_cards_hold(leading: Leading) -> None:
    uuids = leading.system.sql("SELECT uuid FROM devices ORDER BY uuid").splitlines()
    leading.pod("quarter", percent=25)
    leading.pod("pair", count=2, memory="1024Mi")
    leading.pod("picked", {"nvidia.com/use-gpuuuid": uuids[3]}, memory="1024Mi")
    leading.pod("avoided", {"nvidia.com/nouse-gpuuuid": ",".join(uuids[:-1])}, memory="1024Mi")
    leading.pod("typed", {"nvidia.com/use-gputype": "H100"}, memory="1024Mi")
    assert len(set(leading.granted("pair"))) == 2
    assert leading.granted("picked") == [uuids[3]]
    assert leading.granted("avoided") == [uuids[-1]]
    leading.granted("quarter")
    wait(lambda: leading.results("quarter"), "the claim")
    assert leading.results("quarter")[0]["consumedCapacity"]["memory"] == f"{CARD_MIB >> 12}Gi"
    wait(lambda: "no available node" in leading.why("typed"), "the reason of typed")


def test_both_ways_share_a_card_and_never_exceed_it(leading: Leading) -> None:
    half = CARD_MIB // 2
    for number in range(6):
        leading.create(a_pod(f"l{number}", slice_of(half, 10)))
        leading.pod(f"c{number}", memory=f"{half}Mi", cores="10")
    for number in range(6):
        leading.granted(f"l{number}"), leading.granted(f"c{number}")
    leading.pod("more", memory="1Mi")
    wait(lambda: "no available node" in leading.why("more"), "the reason of more")
    assert leading.system.sql("SELECT sum(used_memory_mib) FROM devices") == str(6 * CARD_MIB)
    leading.system.delete("l0")
    leading.system.wait_for_phase("more", "Running")
    wait(lambda: leading.differs() is None, "claims = ledger", why=lambda: str(leading.differs()))


def test_a_node_that_kube_scheduler_finds_unfit_is_left_for_another(leading: Leading) -> None:
    """Its processors are taken by a pod without cards, of which the ledger knows nothing."""
    leading.create(a_pod("here", slice_of(1024)))
    leading.system.wait_for_phase("here", "Running")
    node = leading.system.sql("SELECT node FROM allocations WHERE ended_at IS NULL")
    cpu = int(leading.system.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]["cpu"])
    heavy = a_pod("heavy", {"cpu": cpu - 1}, command=SLEEPS)
    heavy["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    leading.create(heavy)
    leading.system.wait_for_phase("heavy", "Running")

    began = time.monotonic()
    leading.claim("elsewhere", memory="1024Mi")
    pod = claiming(a_pod("elsewhere", command=SLEEPS), "elsewhere")
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
    leading.create(pod)
    now = leading.system.wait_for_phase("elsewhere", "Running")
    took_s = time.monotonic() - began

    assert now["spec"]["nodeName"] != node
    rows = leading.system.sql(
        "SELECT node, state, reason FROM allocations WHERE pod_name = 'elsewhere' ORDER BY attempt"
    ).splitlines()
    assert rows[0].startswith(f"{node}|released|kube-scheduler took the allocation away"), rows
    assert len(rows) == 2, rows
    assert leading.differs() is None
    measured.note(f"lead: on another node {took_s:.2f} s after the pod came, by PostFilter")


def test_a_quota_in_mib_holds_for_claims(leading: Leading) -> None:
    path = "/api/v1/namespaces/default/resourcequotas"
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "2048"}}}
    assert leading.system.api.post(path, json=quota).status_code == 201
    try:
        query = "SELECT count(*) FROM quotas"
        wait(lambda: leading.system.sql(query) != "0", "the quota in the ledger")
        leading.pod("small", memory="2048Mi")
        leading.granted("small")
        leading.pod("large", memory="1024Mi")
        wait(lambda: "gpumem" in leading.why("large"), "the reason of large")
        change = {"spec": {"hard": {"limits.nvidia.com/gpumem": "4096"}}}
        assert leading.system.api.patch(f"{path}/q", json=change, headers=MERGE).status_code == 200
        leading.system.wait_for_phase("large", "Running")
    finally:
        leading.system.api.delete(f"{path}/q")


def test_what_a_claim_can_not_ask_for_is_shown_on_its_pod(leading: Leading) -> None:
    leading.pod("slots", memory="1024Mi", slots="2")
    wait(lambda: "asks for 2 slots" in leading.why("slots"), "the reason of slots")


KILLS = [
    "store.enter.after=kill",
    "claims.protect.after=kill",
    "claims.set_status.before=kill",
    "claims.set_status.after=kill",
]


def test_nothing_leaks_when_the_scheduler_is_killed_between_any_two_steps(
    leading: Leading,
) -> None:
    for number, fault in enumerate(KILLS):
        leading.faults.write_text(f"{fault}\n")
        for pod in range(3):
            leading.pod(f"k{number}-{pod}", memory="1024Mi", cores="1")
        for pod in range(3):
            leading.system.wait_for_phase(f"k{number}-{pod}", "Running")
        assert "kill" not in leading.faults.read_text(), fault
        leading.faults.write_text("")
    wait(lambda: leading.differs() is None, "claims = ledger", why=lambda: str(leading.differs()))
    wait(
        lambda: leading.system.converged() is None,
        "ledger = pods",
        why=lambda: str(leading.system.converged()),
    )
    attempts = leading.system.sql(
        "SELECT max(attempt) FROM allocations WHERE ended_at IS NULL AND origin = 'claim'"
    )
    measured.note(f"lead: killed at {len(KILLS)} points, attempts of a pod {attempts}")


def test_a_claim_that_goes_with_its_waiting_pod_leaves_nothing(leading: Leading) -> None:
    leading.claim("waits", memory="1024Mi")
    pod = claiming(a_pod("waits"), "waits")
    # kube-scheduler finds no node, so the pod never comes to its grant.
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1000"}
    leading.create(pod)
    leading.granted("waits")
    leading.system.force_delete("waits")
    leading.system.api.delete(f"{CLAIMS}/waits")
    count = "SELECT count(*) FROM allocations WHERE ended_at IS NULL"
    wait(lambda: leading.system.sql(count) == "0", "the slice to be free")


def writes(leading: Leading) -> Mapping[str, float]:
    """Of the API server, so far, on pods and claims."""
    found: dict[str, float] = {}
    for line in leading.system.api.get("/metrics").text.splitlines():
        if line.startswith("apiserver_request_total{") and any(
            f'resource="{each}"' in line for each in ("pods", "resourceclaims")
        ):
            labels, _, count = line.rpartition(" ")
            if any(f'verb="{verb}"' in labels for verb in ("POST", "PUT", "PATCH")):
                found[labels] = float(count)
    return found


PODS = 50


def test_the_price_of_claims_beside_limits(leading: Leading) -> None:
    """Figures: pods/s from the first creation to the last binding, and writes per pod."""

    def bound(prefix: str) -> bool:
        pods = [p for p in leading.system.pods() if p["metadata"]["name"].startswith(prefix)]
        return sum("nodeName" in pod["spec"] for pod in pods) == PODS

    for kind in ("bare", "limits", "lead"):
        before, began = sum(writes(leading).values()), time.monotonic()
        for number in range(PODS):
            name = f"{kind}{number}"
            if kind == "lead":
                leading.pod(name, memory="256Mi", cores="1")
            else:
                limits = slice_of(256, 1) if kind == "limits" else {}
                leading.create(a_pod(name, limits, command=SLEEPS))
        wait(lambda kind=kind: bound(kind), f"all of {kind}")
        spent_s = time.monotonic() - began
        made = sum(writes(leading).values()) - before
        measured.note(f"{kind}: {PODS / spent_s:.0f} pods/s, {made / PODS:.1f} writes per pod")
        leading.clear()
