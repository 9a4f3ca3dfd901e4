"""Pods of every vendor but NVIDIA are admitted as HAMi was recorded to admit them."""

from copy import deepcopy
from typing import Any

from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.device_config import DeviceConfig
from hamicommon.k8s.quantities import canonical
from hamicommon.vendors.registry import Vendors
from jsonpatch import apply_patch

from tests.unit.hamicommon import recorded

ALL = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
RULES = AdmissionRules(vendors=ALL, scheduler_name="hami-scheduler")
DOMAINS = (
    *("amd.com/", "birentech.com/", "cambricon.com/", "enflame.com/", "huawei.com/"),
    *("hygon.com/", "iluvatar.ai/", "kunlunxin.com/", "metax-tech.com/", "mthreads.com/"),
)


def without_round_trip(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod without what HAMi's patch changes by reading and writing it (protocol 3)."""
    pod = deepcopy(pod)
    pod.pop("status", None)
    for container in pod["spec"]["containers"]:
        for part in container.get("resources", {}).values():
            part |= {name: canonical(str(amount)) for name, amount in part.items()}
    return pod


def test_verdicts_messages_and_patched_pods_are_hamis() -> None:
    lines = [
        line
        for line in recorded.lines("admission.jsonl")
        if any(domain in str(line["pod"]) for domain in DOMAINS)
    ]
    assert len(lines) >= 15
    for line in lines:
        verdict = mutate(line["pod"], RULES)
        assert verdict.allowed == line["allowed"], line["name"]
        # Ours may name the container before HAMi's text, and the value after them.
        message = line["status"].get("message", "")
        assert message in verdict.message, line["name"]
        assert bool(message) == bool(verdict.message), line["name"]
        # A mistake of the user is 422 here; HAMi's 500 blames the server.
        assert verdict.code == {500: 422}.get(line["status"]["code"], line["status"]["code"])
        theirs = apply_patch(line["pod"], line["patch"])
        ours = apply_patch(line["pod"], verdict.patch)
        assert without_round_trip(ours) == without_round_trip(theirs), line["name"]
