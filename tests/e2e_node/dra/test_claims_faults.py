"""Faults of claims: rows of tests/faults/README.md, on a real kubelet and kube-scheduler."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hamicommon.k8s.types import Json

from tests.e2e.system import wait
from tests.e2e_node.dra.claims import (
    CLAIMS,
    claim,
    claiming_pod,
    descriptions,
    directories,
    reasons,
    start,
)
from tests.e2e_node.node_system import NodeSystem
from tests.faults.processes import serving_pid, wait_until_back
from tests.real_node import containerd

SIZE_MIB, CORES = 3072, 20
POLICIES = "/apis/admissionregistration.k8s.io/v1"
NO_BINDING = "no-binding"

IN_THE_DRIVER = (
    "node_claims.claim.before",
    "node_claims.pod.after",
    "node_bus.request.before",
    "node_bus.request.after",
    "node_files.make_cache_dir.after",
    "node_files.write_limits.before",
    "node_files.write_limits.after",
    "node_cdi.write.before",
    "node_cdi.write.after",
    "node_state.save.before",
    "node_state.save.after",
)
"""In the order in which a claim's preparation comes by."""
IN_THE_SCHEDULER = (
    "claims.get.before",
    "claims.get.after",
    "store.enter.before",
    "postgres.commit",
    "store.enter.after",
)


def come(system: NodeSystem, name: str = "one") -> None:
    """A claim and its pod."""
    claim(system, name, gpu={"memory": f"{SIZE_MIB}Mi", "cores": str(CORES)})
    assert system.create(claiming_pod(system, name)).status_code == 201


def has_its_slice(system: NodeSystem, name: str = "one") -> Json:
    """Wait until it runs; check one grant, one description, and the limits of that grant."""
    pod = system.wait_for_phase(name, "Running")
    assert list(system.limits(pod).values()) == [(SIZE_MIB, CORES)]
    wait(
        lambda: system.ledger_difference() is None,
        "ledger = pods",
        why=lambda: str(system.ledger_difference()),
    )
    assert len(descriptions(system)) == system.live_allocations()
    system.check_invariants()
    return pod


def go(system: NodeSystem, name: str = "one") -> None:
    """The pod ends, and nothing of it is left."""
    system.delete(name)
    wait(lambda: system.live_allocations() == 0, "the slices to be free")
    wait(lambda: not descriptions(system), "the device descriptions to go")
    wait(
        lambda: not directories(system),
        "the directories to go",
        why=lambda: str(directories(system)),
    )


@pytest.mark.parametrize("point", IN_THE_DRIVER)
def test_the_driver_is_killed_at_a_line_and_the_claim_is_prepared_once(
    claiming: NodeSystem, point: str
) -> None:
    system = claiming
    system.plan(f"{point}=kill")
    come(system)
    system.agent.wait_until_killed()
    start(system)

    has_its_slice(system)
    go(system)


@pytest.mark.parametrize("point", IN_THE_SCHEDULER)
def test_our_scheduler_is_killed_while_it_grants_and_grants_once(
    claiming: NodeSystem, point: str
) -> None:
    system = claiming
    pid = serving_pid(system, "scheduler")
    system.plan(f"{point}=kill")
    come(system)
    wait_until_back(system, "scheduler", pid)

    has_its_slice(system)
    go(system)


@contextmanager
def no_binding(system: NodeSystem) -> Iterator[None]:
    """Inside, the API server refuses each binding."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    policy: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NO_BINDING},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["pods/binding"]}]},
            "validations": [{"expression": "false", "message": NO_BINDING}],
        },
    }
    binding: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NO_BINDING},
        "spec": {"policyName": NO_BINDING, "validationActions": ["Deny"]},
    }
    places = {
        f"{POLICIES}/validatingadmissionpolicies": policy,
        f"{POLICIES}/validatingadmissionpolicybindings": binding,
    }
    try:
        for path, body in places.items():
            made = system.api.post(path, json=body)
            assert made.status_code == 201, made.text
        yield
    finally:
        for path in places:
            system.api.delete(f"{path}/{NO_BINDING}")


def binding_is_refused(system: NodeSystem) -> bool:
    """Return whether the API server enforces the admission policy."""
    asked = system.api.post(
        "/api/v1/namespaces/default/pods/nobody/binding?dryRun=All",
        json={
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "nobody"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
        },
    )
    return NO_BINDING in asked.text


def test_kube_scheduler_is_killed_between_allocation_and_binding(claiming: NodeSystem) -> None:
    system = claiming
    with no_binding(system):
        wait(lambda: binding_is_refused(system), "the API server to refuse bindings")
        come(system)
        wait(
            lambda: (system.get(f"{CLAIMS}/one").get("status") or {}).get("allocation"),
            "kube-scheduler's allocation",
            why=lambda: reasons(system, "one"),
        )
        system.kube_scheduler.kill()
        pod = system.pod("one")
        assert pod is not None
        assert not pod["spec"].get("nodeName")
        assert system.live_allocations() == 0
    wait(lambda: not binding_is_refused(system), "the API server to take bindings")
    system.kube_scheduler.start()

    has_its_slice(system)
    go(system)


def test_a_node_that_reboots_with_an_empty_cdi_folder_prepares_again(
    claiming: NodeSystem,
) -> None:
    system = claiming
    come(system)
    before = has_its_slice(system)
    first = system.container_pid(before)

    system.agent.kill()
    system.node.kubelet.kill()
    # The power goes: no process of a pod is left, and /var/run is a file system in memory.
    rows = containerd.ctr(system.node.socket, "tasks", "ls").splitlines()[1:]
    for row in rows:
        os.kill(int(row.split()[1]), signal.SIGKILL)
    for path in descriptions(system):
        path.unlink()
    system.node.restart_kubelet()
    start(system)

    def is_started() -> bool:
        pid = system.container_pid(system.pod("one") or before)
        return pid not in (0, first)

    wait(is_started, "the container to start again", why=lambda: reasons(system, "one"))
    has_its_slice(system)
    go(system)
