"""A claim that two pods hold, or two containers of a pod: one budget, on a real kubelet."""

import json
import os
import signal
from pathlib import Path

from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import MIB, wait
from tests.e2e_node.dra.claims import (
    claim,
    claiming_pod,
    descriptions,
    directories,
    start,
)
from tests.e2e_node.node_system import NodeSystem
from tests.faults.processes import take_down_service

BUDGET_MIB, PART_MIB = 4096, 3000
HOLDERS = (
    "SELECT pod_name, container_name, counted FROM v_claim_holders"
    " WHERE claim_name = 'shared' AND held_until IS NULL ORDER BY 1, 2"
)


def taking(pod: Json, mib: int | None, *, container: int = 0) -> Json:
    """The pod, whose process takes so much of the card; None: all that it may."""
    if mib is not None:
        command = pod["spec"]["containers"][container]["command"]
        command += ["--bytes", str(mib * MIB)]
    return pod


def taken_mib(system: NodeSystem, pod: Json, container: str = "cuda") -> int:
    """Return the MiB that the container's last process holds."""
    lines = system.wait_for_log(pod, container, "launched")
    return int([line["bytes"] for line in lines if line["event"] == "allocated"][-1]) // MIB


def used_mib(system: NodeSystem) -> str:
    return system.sql("SELECT sum(used_memory_mib) FROM devices")


def two_pods(system: NodeSystem) -> dict[str, Json]:
    """`first` and `second`, which run on one claim, each with 1000 MiB of it."""
    claim(system, "shared", gpu={"memory": f"{BUDGET_MIB}Mi"})
    for name in ("first", "second"):
        pod = taking(claiming_pod(system, name, of="shared"), 1000)
        assert system.create(pod).status_code == 201
    pods = {name: system.wait_for_phase(name, "Running") for name in ("first", "second")}
    assert {taken_mib(system, pod) for pod in pods.values()} == {1000}
    wait(lambda: system.live_allocations() == 2, "both holders in the ledger")
    return pods


def counted_for_the_second(system: NodeSystem) -> None:
    wait(
        lambda: system.sql(HOLDERS) == "second|cuda|t",
        "the second to have the slice counted",
        why=lambda: system.sql(HOLDERS),
    )


def wait_until_gone(system: NodeSystem) -> None:
    wait(lambda: system.live_allocations() == 0, "the slices to be free")
    wait(lambda: not descriptions(system), "the device descriptions to go")
    wait(
        lambda: not directories(system),
        "the directories to go",
        why=lambda: str(directories(system)),
    )


def test_two_pods_of_a_claim_have_one_budget_that_the_last_one_gives_back(
    claiming: NodeSystem,
) -> None:
    system = claiming
    claim(system, "shared", gpu={"memory": f"{BUDGET_MIB}Mi", "cores": "30"})
    first = taking(claiming_pod(system, "first", of="shared"), PART_MIB)
    assert system.create(first).status_code == 201
    first = system.wait_for_phase("first", "Running")
    assert taken_mib(system, first) == PART_MIB
    second = claiming_pod(system, "second", of="shared")
    second["spec"]["containers"][0]["name"] = "other"
    assert system.create(second).status_code == 201
    second = system.wait_for_phase("second", "Running")

    # What one has taken, the other can't.
    assert taken_mib(system, second, "other") == BUDGET_MIB - PART_MIB
    assert system.limits(first) == system.limits(second, "other")
    wait(
        lambda: system.sql(HOLDERS) == "first|cuda|t\nsecond|other|f",
        "both holders in the ledger",
        why=lambda: system.sql(HOLDERS),
    )
    assert used_mib(system) == str(BUDGET_MIB)
    system.check_invariants()

    system.delete("first")
    wait(
        lambda: system.sql(HOLDERS) == "second|other|t",
        "the second to have the slice counted",
        why=lambda: system.sql(HOLDERS),
    )
    assert used_mib(system) == str(BUDGET_MIB)
    system.check_invariants()
    # It starts again, under another agent, with the rest on the node: all of the budget.
    system.agent.kill()
    start(system)
    os.kill(system.container_pid(second, "other"), signal.SIGKILL)
    wait(
        lambda: taken_mib(system, second, "other") == BUDGET_MIB,
        "the second to have all of the budget",
        why=lambda: str(system.log(second, "other")),
    )
    assert len(descriptions(system)) == 1

    system.delete("second")
    wait_until_gone(system)
    history = system.sql(
        "SELECT reason FROM allocation_events WHERE pod_uid ="
        f" '{second['metadata']['uid']}' ORDER BY sequence"
    )
    assert "slices that are already counted for pod first" in history
    measured.note(
        f"two pods of one claim of {BUDGET_MIB} MiB: {PART_MIB} taken by one, "
        f"{BUDGET_MIB - PART_MIB} left for the other; released after the last"
    )


def test_the_second_keeps_its_limits_when_the_first_goes_while_its_grant_is_not_known(
    claiming: NodeSystem,
) -> None:
    """The kubelet starts it without calling any service, and our scheduler is down."""
    system = claiming
    claim(system, "shared", gpu={"memory": f"{BUDGET_MIB}Mi"})
    pod = taking(claiming_pod(system, "first", of="shared"), 1000)
    assert system.create(pod).status_code == 201
    first = system.wait_for_phase("first", "Running")
    wait(lambda: system.live_allocations() == 1, "the first one's grant")
    with take_down_service(system, "scheduler"):
        pod = taking(claiming_pod(system, "second", of="shared"), 1000)
        assert system.create(pod).status_code == 201
        second = system.wait_for_phase("second", "Running")
        here = sorted(map(str, directories(system)))
        assert len(descriptions(system)) == 1
        system.delete("first")
        uid = first["metadata"]["uid"]
        wait(lambda: _is_over(system, uid), "the agent to see that the first is over")
        assert sorted(map(str, directories(system))) == here
        assert len(descriptions(system)) == 1
        assert taken_mib(system, second) == 1000
    counted_for_the_second(system)
    assert list(system.limits(second).values()) == [(BUDGET_MIB, 0)]
    system.check_invariants()
    system.delete("second")
    wait_until_gone(system)


def test_an_agent_that_lost_its_state_makes_the_records_of_prepared_claims_again(
    claiming: NodeSystem,
) -> None:
    """The record is of a slice whose folder has the name of a pod that is gone already."""
    system = claiming
    pods = two_pods(system)
    system.delete("first")
    counted_for_the_second(system)
    state = system.agent.folder / "agent" / "state.json"
    wait(lambda: _record(state)["pod_name"] == "second", "the record to be the second one's")
    before = _record(state)
    assert before["cache_dir"].startswith(pods["first"]["metadata"]["uid"])

    system.agent.stop()
    state.unlink()
    start(system)
    wait(lambda: state.exists() and _record(state), "the record to be there again")
    assert _record(state) == before
    # Its process is killed: the account that it had, and no other, is in use again.
    os.kill(system.container_pid(pods["second"]), signal.SIGKILL)
    wait(lambda: len(system.log(pods["second"], "cuda")) > 0, "the log of its next life")
    assert taken_mib(system, pods["second"]) == 1000
    assert len(descriptions(system)) == 1
    system.check_invariants()
    system.delete("second")
    wait_until_gone(system)


def _record(state: Path) -> Json:
    """The only one that the agent has on disk; empty: none."""
    records: list[Json] = json.loads(state.read_text())["records"]
    return records[0] if records else {}


def _is_over(system: NodeSystem, uid: str) -> bool:
    lines = (line for line in system.agent.log.splitlines() if "Terminated a pod" in line)
    return any(uid in line for line in lines)


def test_the_second_of_two_pods_may_go_first_and_the_first_keeps_its_slice(
    claiming: NodeSystem,
) -> None:
    system = claiming
    pods = two_pods(system)
    system.delete("second")
    wait(lambda: system.live_allocations() == 1, "the second to be over")
    assert used_mib(system) == str(BUDGET_MIB)
    assert list(system.limits(pods["first"]).values()) == [(BUDGET_MIB, 0)]
    system.delete("first")
    wait_until_gone(system)


def test_two_containers_of_a_pod_on_one_request_have_one_budget(claiming: NodeSystem) -> None:
    system = claiming
    claim(system, "shared", gpu={"memory": f"{BUDGET_MIB}Mi"})
    pod = system.pod_like("both", containers={"one": {}, "other": {}})
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "shared"}]
    for container in pod["spec"]["containers"]:
        container["resources"] = {"claims": [{"name": "card"}]}
        container["command"] += ["--bytes", str(3000 * MIB)]
    pod["spec"]["containers"][1]["command"][-1] = str(1000 * MIB)
    assert system.create(pod).status_code == 201
    pod = system.wait_for_phase("both", "Running")

    assert [taken_mib(system, pod, name) for name in ("one", "other")] == [3000, 1000]
    assert system.limits(pod, "one") == system.limits(pod, "other")
    assert used_mib(system) == str(BUDGET_MIB)
    assert system.sql(HOLDERS) == "both|one|t\nboth|other|f"
    # One byte more than is left is refused to both: 4000 of 4096 are taken.
    for name in ("one", "other"):
        refused = [e for e in system.log(pod, name) if e["event"] in ("refused", "NOT_refused")]
        assert "NOT_refused" not in {line["event"] for line in refused}
    system.delete("both")
    wait_until_gone(system)
