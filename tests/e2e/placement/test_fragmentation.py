"""A pod that asks for the node policy `fragmentation` is placed by it, and this is explained."""

import re

from hamicommon.k8s.pod_annotations import NODE_POLICY

from tests.e2e.system import System, a_pod, hamictl, slice_of, wait

HALF_MIB = 40_960
BY_FRAGMENTATION = {NODE_POLICY.name: "fragmentation"}


def cards_of(system: System, name: str) -> str:
    return system.sql(
        "SELECT d.device_uuid FROM allocations a"
        " JOIN allocation_devices d ON d.allocation_id = a.id"
        f" WHERE a.pod_name = '{name}' AND a.ended_at IS NULL"
    )


def test_the_second_half_completes_the_card_and_explain_and_history_have_the_score(
    system: System,
) -> None:
    for name in ("half-1", "half-2"):
        pod = a_pod(name, slice_of(HALF_MIB), annotations=BY_FRAGMENTATION)
        assert system.create(pod).status_code == 201
        system.wait_for_phase(name, "Running", timeout_s=90)

    assert cards_of(system, "half-2") == cards_of(system, "half-1")

    def read_explanation() -> str | None:
        text = hamictl(system.folder, "explain", "half-2")
        return text if " was placed: " in text else None

    screen = wait(read_explanation, "the placement to be explained")
    pod = system.pod("half-2")
    assert pod is not None
    node = pod["spec"]["nodeName"]
    less = rf", and on {node} .*strands \d+ milli of a card less than on the next \(node policy fr"
    assert re.search(rf"3 of 3 nodes fit{less}", screen), screen
    assert re.search(r"fits +(strands )?\d+ milli", screen), screen
    assert "nodes fragmentation, cards fragmentation" in screen
    assert "of 30" not in screen
    history = hamictl(system.folder, "history", "half-2")
    assert "strand" in history


def test_a_pod_that_names_no_policy_has_a_usage_in_its_history(system: System) -> None:
    assert system.create(a_pod("plain", slice_of(1000))).status_code == 201
    system.wait_for_phase("plain", "Running", timeout_s=90)

    assert "usage 0.00 of 30" in hamictl(system.folder, "history", "plain")
