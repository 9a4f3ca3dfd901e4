"""`hamictl explain workload/NAME`."""

import pytest
from hamicommon.k8s.types import Json
from hamictl.commands.workloads import answer_of, sentences, workload_name

from tests.unit.hamicommon.kueue.workloads import CHECK, SINCE, workload

OWNED = {"ownerReferences": [{"name": "train"}]}


def lines(item: Json) -> list[str]:
    return list(sentences(answer_of(item, [CHECK])))


def with_condition(kind: str, status: str = "True") -> Json:
    item = workload(metadata=OWNED)
    item["status"]["conditions"].append({"type": kind, "status": status})
    return item


def test_a_workload_with_quota_shows_since_when_and_what_each_check_answers() -> None:
    item = workload(metadata=OWNED)
    item["status"]["admissionChecks"][1]["message"] = "7 of the 8 pods fit"
    assert lines(item) == [
        f"default/w (of train) holds its quota of queue gpu since {SINCE}",
        "  others (another controller's check): Ready: -",
        f"  {CHECK} (whether its slices are there): Pending: 7 of the 8 pods fit",
    ]
    assert answer_of(item, [CHECK])["waits"]


def test_a_workload_without_quota_shows_kueues_reason() -> None:
    quota = {"type": "QuotaReserved", "status": "False", "message": "no quota"}
    [line] = lines(workload(status={"conditions": [quota], "admissionChecks": []}))
    assert line == "default/w waits for quota of queue gpu: no quota"
    [line] = lines(workload(status={"conditions": [], "admissionChecks": []}))
    assert line.endswith("Kueue has not looked at it")


def test_an_admitted_one_names_its_pods_and_a_finished_one_waits_for_nothing() -> None:
    first, *_, last = lines(with_condition("Admitted"))
    assert "is admitted by queue gpu" in first
    assert last == "  its pods: hamictl explain job/train"
    assert lines(with_condition("Finished")) == ["default/w (of train) is finished"]
    assert not answer_of(with_condition("Admitted"), [])["waits"]


def test_a_deactivated_one_is_named() -> None:
    assert "is deactivated" in lines(workload(spec={"active": False}))[0]


@pytest.mark.parametrize(
    ("given", "name"), [("workload/w", "w"), ("wl/w", "w"), ("job/w", ""), ("w", "")]
)
def test_a_kind_of_its_own_names_a_workload(given: str, name: str) -> None:
    assert workload_name(given) == name
