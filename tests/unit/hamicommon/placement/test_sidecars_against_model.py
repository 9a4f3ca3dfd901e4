"""Grants beside a model of Kubernetes' rule: what runs at the same time is held at the same time.

A failing case is named by its seed: `make test-model ARGS='--model-seed=SEED --model-cases=1'`.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hamicommon.admission.quota import needs
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.vendors.pod_request import pod_request

from tests.reference import moments
from tests.reference.random import random_sidecars
from tests.unit.hamicommon.simulation.objects import every_vendor

VENDORS = every_vendor()
NODE = NodeName("n")
PODS = 4


def differences(random: Random) -> Iterator[str]:
    """Differences of engine and model while random pods fill a node, one sentence each."""
    cards = random_sidecars.cards(random)
    for number in range(PODS):
        pod = random_sidecars.pod(random, number)
        request = pod_request(pod, VENDORS)
        if not request.wants_devices:
            continue
        view = ClusterView(VENDORS.rules)
        view.set_node(NODE, [CardState(usage, 0) for usage in cards], pair_scores=None)
        placement = decide(request, view, candidates=[NODE]).placement
        if placement is None:
            continue
        slices = {
            container.name: [
                (share.uuid, (share.slots, share.memory_mib, share.core_percent))
                for share in container.shares
            ]
            for container in placement.containers
        }
        most = moments.most_held(pod["spec"], slices)
        granted = {
            each.uuid: (each.slots, each.memory_mib, each.core_percent)
            for each in placement.footprints()
        }
        if granted != most:
            yield f"pod {number}: granted {granted}, held at the most {most}"
        least = needs(request, VENDORS)
        if least.get("nvidia.com/gpumem", 0) > sum(memory for _, memory, _ in most.values()):
            yield f"pod {number}: admission counts {least}, held at the most {most}"
        for running in moments.moments(pod["spec"]):
            yield from _over_committed(cards, pod, running, slices)
        cards = [_with(usage, most.get(usage.device.uuid, (0, 0, 0))) for usage in cards]


def _over_committed(
    cards: list[DeviceUsage],
    pod: Json,
    running: list[str],
    slices: dict[str, list[moments.Slice]],
) -> Iterator[str]:
    now = moments.held_at(running, slices)
    for usage in cards:
        card, held = usage.device, now.get(usage.device.uuid, (0, 0, 0))
        after = _with(usage, held)
        if (
            after.used_slots > card.slots
            or after.used_memory_mib > card.memory_mib
            or after.used_core_percent > card.core_percent
        ):
            yield f"{pod['metadata']['name']}: {card.uuid} is over-committed by {running}: {after}"
        alone = any(
            where == card.uuid and cores == 100
            for name in running
            for where, (_, _, cores) in slices[name]
        )
        if alone and after.used_slots > 1:
            yield f"{pod['metadata']['name']}: {card.uuid} is not its own for {running}: {after}"


def _with(usage: DeviceUsage, held: moments.Held) -> DeviceUsage:
    return replace(
        usage,
        used_slots=usage.used_slots + held[0],
        used_memory_mib=usage.used_memory_mib + held[1],
        used_core_percent=usage.used_core_percent + held[2],
    )


def test_grants_and_model_agree_on_random_pods(pytestconfig: pytest.Config) -> None:
    first = pytestconfig.getoption("--model-seed")
    wrong = {}
    for seed in range(first, first + pytestconfig.getoption("--model-cases")):
        if found := list(differences(Random(seed))):
            wrong[f"--model-seed={seed}"] = found
    assert wrong == {}
