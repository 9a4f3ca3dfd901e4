"""HAMi's example pods for AWS Neuron, Vastai, Biren, Ascend and Iluvatar ask for what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.admission.mutation import AdmissionRules, mutate
from hamicommon.deviceconfig import DeviceConfig
from hamicommon.k8s.resources import pod_request
from hamicommon.vendors.registry import Vendors
from jsonpatch import apply_patch

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
RULES = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler")

Asked = tuple[str, int, int, int | None, int]
"""Word, count, MiB, percent of memory, cores."""

MR, BI100, BI150 = "MR-V100", "BI-V100", "BI-V150"


def iluvatar(word: str) -> tuple[Asked, Asked]:
    """A slice of a card, and two whole ones (all cores of both)."""
    return (word, 1, 64 * 256, None, 50), (word, 2, 0, 100, 200)


EXAMPLES: dict[str, list[Asked]] = {
    "ascend/job-310P.yaml": [("Ascend310P", 1, 3072, None, 0)],
    "ascend/job-910A.yaml": [("Ascend910A", 1, 2184, None, 0)],
    "ascend/job-910B2.yaml": [("Ascend910B2", 1, 8192, None, 0)],
    "ascend/job-910B3.yaml": [("Ascend910B3", 1, 16384, None, 0)],
    "ascend/job-910B4.yaml": [("Ascend910B4", 1, 8192, None, 0)],
    "ascend/job-910C.yaml": [("Ascend910C", 2, 16384, None, 0)],
    "awsneuron/allocate_core.yaml": [("AWSNeuron", 1, 0, None, 1)],
    "awsneuron/allocate_dev.yaml": [("AWSNeuron", 1, 0, None, 2)],
    "awsneuron/multi_containers.yaml": [("AWSNeuron", 1, 0, None, 1)] * 2,
    "vastai/default_use.yaml": [("Vastai", 1, 0, 100, 0)],
    "biren/default_use.yaml": [("Biren", 1, 0, 100, 0)],
    **{f"iluvatar/default_use_{x}.yaml": [iluvatar(x)[0]] for x in (MR, BI100, BI150)},
    **{f"iluvatar/multi-containers_{x}.yaml": [iluvatar(x)[0]] * 2 for x in (MR, BI100, BI150)},
    **{f"iluvatar/multi-devices_{x}.yaml": [iluvatar(x)[1]] for x in (MR, BI100, BI150)},
}


def example(name: str) -> dict[str, Any]:
    """The pod; skips the test when the folder is not beside the checkout."""
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared" / "examples" / "hami" / name
        if path.exists():
            pod: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
            return pod
    pytest.skip(f"shared/examples/hami/{name} is not beside the checkout")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_pod_is_admitted_and_asks_for_what_its_comments_say(name) -> None:
    given = example(name)
    verdict = mutate(given, RULES)
    assert verdict.allowed, verdict.message
    assert verdict.warnings == ()
    admitted = apply_patch(given, verdict.patch)
    assert admitted["spec"]["schedulerName"] == "hami-scheduler"

    found = [
        (r.vendor, r.count, r.memory_mib, r.memory_percent, r.core_percent)
        for container in pod_request(admitted, VENDORS).containers
        for r in container.requests
    ]
    assert found == EXAMPLES[name]
    assert mutate(admitted, RULES).patch == []
