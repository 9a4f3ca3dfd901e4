"""A pod's shape as an annotation, and as a template."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hamicommon.dra.shapes import (
    MAX_ALTERNATIVES,
    ClaimShape,
    SliceShape,
    selector_of,
    shape_from,
    template_of,
)
from hamicommon.errors import InvalidRequest
from hypothesis import given, settings
from hypothesis import strategies as st

ONE = SliceShape(count=1, memory_mib=4096, memory_percent=0, core_percent=30)
PART = SliceShape(count=2, memory_mib=0, memory_percent=50, core_percent=0)
TEXTS = st.lists(st.text(max_size=10), max_size=3).map(tuple)


@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS, st.lists(st.sampled_from([ONE, PART]), min_size=1, max_size=4))
def test_the_annotation_gives_the_same_shape_back(
    types: tuple[str, ...], uuids: tuple[str, ...], slices: list[SliceShape]
) -> None:
    shape = ClaimShape(slices=tuple(slices), use_types=types, avoid_uuids=uuids)
    again = shape_from(shape.text)
    assert (again, again.template_name) == (shape, shape.template_name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"slices":[]}',
        '{"slices":[{}]}',
        '{"slices":{"a":1}}',
        "[" * 100_000,
        ClaimShape(slices=(replace(ONE, count=0),)).text,
        ClaimShape(slices=(replace(ONE, count=33),)).text,
        ClaimShape(slices=(ONE,) * 33).text,
        ClaimShape(slices=(replace(ONE, memory_mib=2**40),)).text,
        ClaimShape(slices=(replace(ONE, memory_mib=0),)).text,
        ClaimShape(slices=(replace(ONE, core_percent=101),)).text,
        ClaimShape(slices=(ONE,)).text.replace('"count":1', '"count":true'),
        ClaimShape(slices=(ONE,)).text.replace('"use_types":[]', '"use_types":"ab"'),
        ClaimShape(slices=(ONE,)).text.replace('"use_types":[]', '"use_types":[1]'),
        ClaimShape(slices=(ONE,)).text.replace('"use_types"', '"others"'),
        ClaimShape(slices=(ONE,)).text + " ",
    ],
)
def test_what_a_tenant_wrote_is_refused_with_the_annotations_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"hami\.io/claim-shape"):
        shape_from(text)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(InvalidRequest):
        shape_from(text)


def test_amounts_are_stated_once_and_parts_for_each_size_of_card() -> None:
    shape = ClaimShape(slices=(ONE, PART))
    body = template_of(shape, "team", [81920, 40960, 81920])

    assert (body["metadata"]["namespace"], body["metadata"]["name"]) == (
        "team",
        shape.template_name,
    )
    one, part = body["spec"]["spec"]["devices"]["requests"]
    assert one["name"] == "gpu-0"
    assert one["exactly"]["capacity"]["requests"] == {"memory": "4096Mi", "cores": "30"}
    assert "selectors" not in one["exactly"]
    assert [
        (each["name"], each["count"], each["capacity"]["requests"], each["selectors"])
        for each in part["firstAvailable"]
    ] == [
        (
            f"mib-{size}",
            2,
            {"memory": f"{size // 2}Mi"},
            [{"cel": {"expression": select_memory(size)}}],
        )
        for size in (40960, 81920)
    ]


def select_memory(mib: int) -> str:
    return f'device.attributes["gpu.hami.io"].memoryMib == {mib}'


def test_a_request_has_no_more_alternatives_than_kubernetes_takes() -> None:
    body = template_of(ClaimShape(slices=(PART,)), "team", range(1024, 40960, 1024))
    [part] = body["spec"]["spec"]["devices"]["requests"]
    assert len(part["firstAvailable"]) == MAX_ALTERNATIVES


def test_selections_are_cel_that_quotes_what_users_wrote() -> None:
    hostile = '"] || true || ["'
    shape = ClaimShape(
        slices=(ONE,),
        use_types=("a100", ""),
        avoid_types=("MIG",),
        use_uuids=(hostile,),
        avoid_uuids=("GPU-1", "GPU-2"),
    )
    product = 'device.attributes["gpu.hami.io"].productName.upperAscii()'
    uuid = 'device.attributes["gpu.hami.io"].uuid'
    assert selector_of(shape) == " && ".join(
        (
            f'({product}.contains("A100"))',
            f'!({product}.contains("MIG"))',
            f"{uuid} in [{json.dumps(hostile)}]",
            f'!({uuid} in ["GPU-1", "GPU-2"])',
        )
    )
    assert selector_of(ClaimShape(slices=(ONE,), use_types=("",))) == "(false)"
