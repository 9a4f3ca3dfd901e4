"""The engine gives the reference model's answers: verdicts, cards, reasons and the chosen node.

Both read the same Kubernetes objects, so requests, inventory and usage are compared as well. A
failing case is named by its seed: `make test-model ARGS='--model-seed=SEED --model-cases=1'`.
"""

import json
from random import Random

import pytest
from hamicommon.simulation.cases import Simulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reference import model
from tests.reference.random import generate
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
    """Every other case has NVIDIA cards alone, one in four a single other vendor, the rest any."""
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
