"""The table of pod annotations: values are read, refused or warned of as their rows have it."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.device_config import DeviceConfig
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.pod_annotations import (
    FRONT_END,
    GPU_POLICY,
    NODE_POLICY,
    NVIDIA_NUMA_BIND,
    PRELOAD,
    SCORING_WEIGHTS,
    UserAnnotation,
)
from hamicommon.vendors.annotation_table import (
    scheduler_owned,
    user_annotations,
    written_annotations,
)
from hamicommon.vendors.registry import Vendors

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)


def of(row: UserAnnotation[Any], text: str) -> dict[str, str]:
    return {row.name: text}


@pytest.mark.parametrize(
    ("row", "text", "value"),
    [
        (PRELOAD, "true", "true"),
        (NODE_POLICY, " spread ", "spread"),
        (NODE_POLICY, "emptiest", "binpack"),
        (GPU_POLICY, "mutex, spread", ("mutex", "spread")),
        (NVIDIA_NUMA_BIND, "yes", False),
    ],
)
def test_a_value_is_read_by_its_row(row: UserAnnotation[Any], text: str, value: object) -> None:
    assert row.read(of(row, text)) == value
    assert row.read({}) is None


@pytest.mark.parametrize(
    ("row", "text"),
    [(PRELOAD, "TRUE"), (PRELOAD, ""), (SCORING_WEIGHTS, "slot=1")],
)
def test_a_value_that_no_reader_could_take_is_refused(row: UserAnnotation[Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        row.read(of(row, text))

    assert str(refused.value).startswith(
        f"annotation {row.name} is '{text}': {row.wanted} is wanted"
    )
    assert row.effect == "the pod is refused"


@pytest.mark.parametrize(
    ("row", "text", "remark"),
    [
        (FRONT_END, "claims", "is 'claims': limits or dra is wanted; the pod keeps its limits"),
        (NVIDIA_NUMA_BIND, "yes", "is 'yes': true or false is wanted; it is taken as false"),
        (GPU_POLICY, "binpack,full", "has 'full': a comma list of "),
    ],
)
def test_a_value_that_is_admitted_and_not_known_is_warned_of(
    row: UserAnnotation[Any], text: str, remark: str
) -> None:
    [found] = row.remarks(of(row, text))

    assert found.startswith(f"annotation {row.name} {remark}")
    assert found.endswith(row.otherwise)


def test_every_row_has_its_texts_and_people_and_services_write_different_annotations() -> None:
    own, written = user_annotations(VENDORS), written_annotations(VENDORS)
    names = [row.name for row in own]

    assert all(row.wanted and row.holds and row.reader for row in own)
    assert all(row.holds and row.reader for row in written)
    assert len(set(names)) == len(names)
    assert scheduler_owned(VENDORS).isdisjoint(names)
    assert scheduler_owned(VENDORS) < {row.name for row in written}
