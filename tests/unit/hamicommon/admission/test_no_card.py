"""Pods that ask for no card (protocol 3 and 1.1)."""

from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules

from tests.unit.hamicommon.admission.pods import (
    EVERY_VENDOR,
    GPU,
    MEM,
    container,
    patched,
    pod,
    rules,
)

NOTHING = ["0", 0, "0.0", "0k", "-0"]


@pytest.mark.parametrize("amount", NOTHING)
@pytest.mark.parametrize("part", ["initContainers", "containers"])
def test_a_pod_that_asks_for_no_card_is_left_alone(amount: object, part: str) -> None:
    given_ = pod(container(), **{part: [container({GPU: amount}), container({MEM: 0, GPU: "0"})]})
    given_["spec"]["containers"] = given_["spec"].get("containers") or [container()]

    verdict = mutate(given_, rules())

    assert (verdict.patch, verdict.reason, verdict.warnings) == ([], "no-cards", ())


@pytest.mark.parametrize("limits", [{GPU: "0", MEM: "4000"}, {"nvidia.com/priority": "1"}])
def test_a_pod_of_no_card_with_other_amounts_is_scheduled_by_us(limits: dict[str, Any]) -> None:
    """Other schedulers look for these amounts on the nodes, and find none for ever."""
    given_ = pod(container(limits), nodeName="")

    after = patched(given_, verdict := mutate(given_, rules()))

    assert after["spec"]["schedulerName"] == "hami-scheduler"
    assert after["spec"]["containers"][0]["resources"]["limits"] == limits
    assert verdict.reason == "no-cards"
    assert mutate(after, rules()).patch == []


def test_no_card_of_many_keeps_a_container_that_sees_none() -> None:
    """A pod with 0 cards must not get all of them by an image whose variable is `all`."""
    given_ = pod(container({GPU: "0"}))

    after = patched(given_, mutate(given_, rules(overwrite_env=True)))

    assert after["spec"]["containers"][0]["env"] == [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
    ]


REFUSE_ZERO = ("AWSNeuron", "Enflame", "Mthreads")
"""Vendors that refuse a count of zero, as HAMi does, with a sentence."""


@pytest.mark.parametrize(
    "name", [v.resources.count for v in EVERY_VENDOR if v.name not in REFUSE_ZERO]
)
def test_a_count_of_zero_is_no_card_of_any_vendor(name: str) -> None:
    served = AdmissionRules(vendors=EVERY_VENDOR, scheduler_name="hami-scheduler")
    for amount in NOTHING:
        before = {"limits": {name: amount}, "requests": {name: amount}}

        verdict = mutate(given_ := pod(container(resources=before)), served)

        assert verdict.reason == "no-cards", amount
        after = patched(given_, verdict)
        assert after["spec"]["containers"][0]["resources"] == before
        assert "schedulerName" not in after["spec"]
