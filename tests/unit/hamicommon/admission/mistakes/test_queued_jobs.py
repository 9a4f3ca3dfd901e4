"""Requests that Kueue counts wrongly, as `docs/kueue.md` lists them."""

import pytest
from hamicommon.admission.mistakes.queued_jobs import QUEUE_LABEL, find_miscounts, is_queued
from hamicommon.device_config import DeviceConfig
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon.simulation.objects import every_vendor

VENDORS = Vendors.from_config(DeviceConfig())
GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
PERCENT = "nvidia.com/gpumem-percentage"


def template(*limits: Json, init: tuple[Json, ...] = ()) -> Json:
    def containers(names: str, each: tuple[Json, ...]) -> list[Json]:
        return [
            {"name": f"{names}{number}", "resources": {"limits": asked}}
            for number, asked in enumerate(each)
        ]

    return {
        "spec": {"initContainers": containers("i", init), "containers": containers("c", limits)}
    }


def job(*limits: Json, init: tuple[Json, ...] = ()) -> Json:
    return {
        "kind": "Job",
        "metadata": {"name": "train", "labels": {QUEUE_LABEL: "gpu"}},
        "spec": {"template": template(*limits, init=init)},
    }


NO_COUNT = "container 'c0' names no nvidia.com/gpu: the queue counts 0 of it"
NO_MEMORY = "container 'c0' names no nvidia.com/gpumem: it gets whole cards"
BY_PERCENT = "container 'c0' asks for nvidia.com/gpumem-percentage, which no queue can count"


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ([{GPU: 2, MEMORY: 1000, CORES: 10}], []),
        ([{GPU: 1, MEMORY: 1000}, {"cpu": 1}], []),
        ([{GPU: 0}], []),
        ([{MEMORY: 1000}], [NO_COUNT]),
        ([{CORES: 10}], [NO_COUNT, NO_MEMORY]),
        ([{GPU: "1"}], [NO_MEMORY]),
        ([{GPU: 1, PERCENT: 50}], [BY_PERCENT]),
        (
            [{GPU: 1, MEMORY: 1000}, {GPU: 1, MEMORY: 1000}],
            [
                "2 containers ask for cards: the queue counts 4000 nvidia.com/total-gpumem for a "
                "pod that is granted 2000"
            ],
        ),
    ],
)
def test_each_miscounted_request_is_named(limits: list[Json], found: list[str]) -> None:
    sentences = find_miscounts(job(*limits), VENDORS)

    assert len(sentences) == len(found), sentences
    for sentence, start in zip(sentences, found, strict=True):
        assert sentence.startswith(start)


def test_an_init_container_is_looked_at_and_counts_beside_no_other() -> None:
    assert find_miscounts(job({GPU: 1, MEMORY: 10}, init=({GPU: 1, MEMORY: 10},)), VENDORS) == ()
    [found] = find_miscounts(job({GPU: 1, MEMORY: 10}, init=({GPU: 1},)), VENDORS)
    assert found.startswith("container 'i0' names no nvidia.com/gpumem")


def test_every_template_of_a_job_set_and_of_a_ray_job_is_looked_at() -> None:
    job_set: Json = {
        "kind": "JobSet",
        "metadata": {"labels": {QUEUE_LABEL: "gpu"}},
        "spec": {
            "replicatedJobs": [
                {"name": "leader", "template": {"spec": {"template": template({"cpu": 1})}}},
                {"name": "workers", "template": {"spec": {"template": template({GPU: 1})}}},
            ]
        },
    }
    ray_job: Json = {
        "kind": "RayJob",
        "metadata": {"labels": {QUEUE_LABEL: "gpu"}},
        "spec": {
            "rayClusterSpec": {
                "headGroupSpec": {"template": template({MEMORY: 10})},
                "workerGroupSpecs": [{"groupName": "big", "template": template({GPU: 1})}],
            }
        },
    }
    assert is_queued(job_set)
    assert is_queued(ray_job)
    assert [each.partition(":")[0] for each in find_miscounts(job_set, VENDORS)] == ["workers"]
    assert [each.partition(":")[0] for each in find_miscounts(ray_job, VENDORS)] == ["head", "big"]


def test_a_vendor_without_an_amount_of_memory_has_no_such_request() -> None:
    assert find_miscounts(job({"aws.amazon.com/neuroncore": 1}), every_vendor()) == ()
    assert len(find_miscounts(job({"huawei.com/Ascend910A": 1}), every_vendor())) == 1


def test_only_jobs_with_the_label_of_a_queue_are_queued() -> None:
    queued = job({GPU: 1})
    assert is_queued(queued)
    assert not is_queued({**queued, "metadata": {"name": "train"}})
    assert not is_queued({**queued, "kind": "Deployment"})


@pytest.mark.parametrize("spec", [None, {"replicatedJobs": "x"}, {"replicatedJobs": [None]}])
def test_a_malformed_job_has_no_request(spec: object) -> None:
    item = {"kind": "JobSet", "metadata": {"labels": {QUEUE_LABEL: "gpu"}}, "spec": spec}
    assert find_miscounts(item, VENDORS) == ()
