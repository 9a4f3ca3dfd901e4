"""HAMi's example pods of all vendors but NVIDIA ask for what their comments state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.device_config import DeviceConfig
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors
from jsonpatch import apply_patch

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
RULES = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler")

Asked = tuple[str, int, int, int | None, int]
"""Vendor, count, MiB, percent of memory, cores."""

MR, BI100, BI150 = "MR-V100", "BI-V100", "BI-V150"


def iluvatar(name: str) -> tuple[Asked, Asked]:
    """A slice of a card, and two whole ones (all cores of both)."""
    return (name, 1, 64 * 256, None, 50), (name, 2, 0, 100, 200)


EXAMPLES: dict[str, list[Asked]] = {
    "hygon/default_use.yaml": [("DCU", 1, 2000, None, 60)],
    "hygon/specify_card_type_to_use.yaml": [("DCU", 1, 2000, None, 60)],
    "hygon/use_exclusive_card.yaml": [("DCU", 2, 0, 100, 100)],
    "mlu/allocate_whole.yaml": [("MLU", 1, 0, 100, 100)],
    "mthreads/default_use.yaml": [("Mthreads", 1, 16384, None, 8)],
    "mthreads/use_exclusive.yaml": [("Mthreads", 1, 49152, None, 16)],
    "mthreads/multi_cards.yaml": [("Mthreads", 2, 49152, None, 16)],
    "enflame/gcu_use.yaml": [("GCU", 1, 100, 100, 100)],
    "enflame/gcu_use.yaml#1": [("GCU", 2, 100, 100, 100)],
    "enflame/vgcu_use.yaml": [("Enflame", 1, 0, None, 0)],
    "enflame/vgcu_use.yaml#2": [("Enflame", 1, 0, None, 40)],
    "metax/gpu/default_use.yaml": [("Metax-GPU", 1, 0, 100, 100)],
    "metax/sgpu/default_use.yaml": [("Metax-SGPU", 1, 4096, None, 60)],
    "metax/sgpu/allocate_exclusive.yaml": [("Metax-SGPU", 1, 0, 100, 100)],
    "metax/sgpu/allocate_vmemory_MiB.yaml": [("Metax-SGPU", 1, 2048, None, 60)],
    "metax/sgpu/enable_topology_aware.yaml": [("Metax-SGPU", 4, 0, 100, 100)],
    "metax/sgpu/online.yaml": [("Metax-SGPU", 1, 4096, None, 100)],
    "metax/sgpu/multi-containers.yaml": [
        ("Metax-SGPU", 1, 4096, None, 60),
        ("Metax-SGPU", 1, 8192, None, 30),
    ],
    "kunlun/default_use.yaml": [("XPU", 1, 24576, None, 25)],
    "kunlun/allocate_exclusive.yaml": [("XPU", 1, 98304, 100, 100)],
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
    """The pod (after `#` its number in the file), or the one in a template.

    Skips the test when the folder is not beside the checkout.
    """
    file, _, number = name.partition("#")
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared" / "examples" / "hami" / file
        if path.exists():
            found = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))[int(number or 0)]
            pod: dict[str, Any] = found if found["kind"] == "Pod" else found["spec"]["template"]
            return pod
    pytest.skip(f"shared/examples/hami/{file} is not beside the checkout")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_pod_is_admitted_and_asks_for_what_its_comments_state(name) -> None:
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
