"""The engine gives the reference model's answers: verdicts, cards, reasons and the chosen node.

Both read the same Kubernetes objects, so requests, inventory and usage are compared as well. A
failing case is named by its seed: `make test-model ARGS='--model-seed=SEED --model-cases=1'`.
"""

import json
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
from hamicommon.simulation.cases import Simulator
from hamicommon.vendors.pod_request import pod_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reference import model, moments
from tests.reference.random import generate, random_sidecars
from tests.reference.random.comparison import differences
from tests.unit.hamicommon.simulation.objects import every_vendor

VENDORS = every_vendor()
SIMULATOR = Simulator(vendors=VENDORS)
NAMES = [vendor.name for vendor in VENDORS]


def disagreements(random: Random, vendors: list[str]) -> list[str]:
    """List the differences between engine and model for one random case."""
    case = generate.case(random, vendors)
    engine = SIMULATOR.answer_line(json.dumps(case), 1)
    return list(differences(engine, model.answer(case)))


def vendors_of(seed: int) -> list[str]:
    """Only NVIDIA in every other case, a single vendor in one of four, any in the rest."""
    if seed % 2:
        return ["NVIDIA"]
    return [NAMES[seed // 4 % len(NAMES)]] if seed % 4 else NAMES


def test_engine_and_model_agree_on_random_cases(pytestconfig: pytest.Config) -> None:
    first = pytestconfig.getoption("--model-seed")
    wrong = {}
    for seed in range(first, first + pytestconfig.getoption("--model-cases")):
        if found := disagreements(Random(seed), vendors_of(seed)):
            wrong[f"--model-seed={seed}"] = found
    assert wrong == {}


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.randoms(use_true_random=False), st.sampled_from([*NAMES, None]))
def test_engine_and_model_agree_on_cases_that_hypothesis_finds(
    random: Random, vendor: str | None
) -> None:
    assert disagreements(random, NAMES if vendor is None else [vendor]) == []


def test_the_cases_are_worth_comparing() -> None:
    """Fits, refusals of every kind, mistakes and pods without a card all come up."""
    answers = [model.answer(generate.case(Random(seed), NAMES)) for seed in range(300)]
    nodes = [node for answer in answers for node in answer["nodes"].values()]
    reasons = {
        piece.split(" ", 1)[-1]
        for node in nodes
        for piece in node.get("reason", "").split(", ")
        if piece
    }
    fits = sum(node["fits"] for node in nodes)
    assert 0.15 < fits / len(nodes) < 0.85
    assert any(answer["error"] for answer in answers)
    assert any(answer["chosen"] == "unfiltered" for answer in answers)
    assert reasons >= {
        "AllocatedCardsInsufficientRequest",
        "CardInsufficientCore",
        "CardInsufficientMemory",
        "CardNotHealth",
        "CardTimeSlicingExhausted",
        "CardUuidMismatch",
        "ExclusiveDeviceAllocateConflict",
        "NodeInsufficientDevice",
        "NumaNotFit",
    }


# --- grants beside a model of Kubernetes' rule: what runs at the same time is held at the same time


NODE = NodeName("n")
PODS = 4


def sidecar_differences(random: Random) -> Iterator[str]:
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
        if found := list(sidecar_differences(Random(seed))):
            wrong[f"--model-seed={seed}"] = found
    assert wrong == {}
