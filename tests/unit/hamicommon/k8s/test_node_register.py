"""The node register and the pair scores, to the byte."""

import json

import pytest
from hamicommon.domain.devices import GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.node_register import (
    decode_pair_scores,
    decode_register,
    encode_pair_scores,
    encode_register,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.devices import a_device

GPU = a_device("GPU-a", type="NVIDIA A100-SXM4-40GB", memory_mib=40960)


def test_zero_values_are_left_out() -> None:
    assert encode_register([GPU]) == (
        '[{"id":"GPU-a","count":10,"devmem":40960,"devcore":100,'
        '"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true}]'
    )


def test_all_fields_are_written_in_hamis_order() -> None:
    profile = MigProfile(
        name="1g.5gb", memory_mib=4864, core_percent=15, slice_count=1, placements=((0, 1), (1, 1))
    )
    device = a_device(
        "GPU-b",
        index=3,
        type="NVIDIA A30",
        slots=7,
        memory_mib=1,
        core_percent=2,
        numa=1,
        mode="mig",
        healthy=True,
        mig_profiles=(profile,),
    )

    assert encode_register([device]) == (
        '[{"id":"GPU-b","index":3,"count":7,"devmem":1,"devcore":2,"type":"NVIDIA A30","numa":1,'
        '"mode":"mig","migProfiles":[{"name":"1g.5gb","memoryMB":4864,"core":15,"sliceCount":1,'
        '"placements":[{"start":0,"size":1},{"start":1,"size":1}]}],"health":true}]'
    )
    assert decode_register(encode_register([device])) == (device,)


def test_no_device_is_an_empty_list() -> None:
    assert encode_register([]) == "[]"
    assert decode_register("[]") == ()


def test_a_card_without_health_is_unhealthy_and_without_mode_has_none() -> None:
    (device,) = decode_register('[{"id":"GPU-a","count":1,"later":{"field":1}}]')

    assert (device.healthy, device.mode, device.numa, device.type) == (False, "", 0, "")


def test_null_is_as_good_as_left_out() -> None:
    registered = (
        '[{"id":"a","count":null,"type":null,"health":null,"mode":null,"migProfiles":null}]'
    )
    assert decode_register(registered) == decode_register('[{"id":"a"}]')


def test_a_vendors_own_facts_of_a_card_are_read_and_not_written() -> None:
    (device,) = decode_register('[{"id":"a","custominfo":{"NetworkID":1,"AIC":"0"}}]')

    assert device.info == {"NetworkID": 1, "AIC": "0"}
    assert decode_register('[{"id":"a","custominfo":null}]')[0].info == {}
    assert "custominfo" not in encode_register([device])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "neither"),
        ("hello", "neither"),
        ("[1]", "card 0"),
        ('[{"count":1}]', "card 0 of the node register has no id"),
        ('[{"id":"a"},{"id":"b","devmem":"x"}]', "devmem of card 1"),
        ('[{"id":"a","devmem":-1}]', "devmem of card 0"),
        ('[{"id":"a","devmem":1.5}]', "devmem of card 0"),
        ('[{"id":"a","count":true}]', "count of card 0"),
        ('[{"id":"a","count":4294967296}]', "count of card 0"),
        ('[{"id":"a","health":"yes"}]', "health of card 0"),
        ('[{"id":7}]', "id of card 0"),
        ('[{"id":"a"},{"id":"a"}]', "card a twice"),
        ('[{"id":"a","custominfo":[]}]', "custominfo of card 0"),
        ('[{"id":"a","migProfiles":{}}]', "migProfiles of card 0"),
        ('[{"id":"a","migProfiles":[1]}]', "MIG profile of card 0"),
        ('[{"id":"a","migProfiles":[{"placements":[1]}]}]', "placements of a MIG profile"),
        ("a,1,2,3,T,0:", "has 6 fields, not 7 or 9"),
        ("a,1,2,3,T,0,maybe:", "health of card 0"),
        ("a,1,x,3,T,0,true:", "devmem of card 0"),
        ("a,1,2,3,T,0,true,-1,mig:", "index of card 0"),
    ],
)
def test_what_is_wrong_is_named(text, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        decode_register(text)


def test_csv_of_seven_fields_has_index_0_and_mode_hami_core() -> None:
    assert decode_register("GPU-a,10,40960,100,NVIDIA A100-SXM4-40GB,0,true:") == (GPU,)


def test_csv_of_nine_fields_has_index_and_mode() -> None:
    first, second = decode_register("a,10,2,3,T,1,1,4,mps::b,10,2,3,T,1,F,5,mig:", vendor="DCU")

    assert (first.index, first.mode, first.healthy, first.vendor) == (4, "mps", True, "DCU")
    assert (second.uuid, second.index, second.healthy) == ("b", 5, False)


texts = st.text(st.characters(blacklist_characters=",:[]", codec="utf-8"), min_size=1).filter(
    lambda text: text == text.strip()
)
profiles = st.builds(
    MigProfile,
    name=texts,
    memory_mib=st.integers(0, 2**31 - 1),
    core_percent=st.integers(0, 100),
    slice_count=st.integers(0, 8),
    placements=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 8)), max_size=3).map(tuple),
)
devices = st.builds(
    GpuDevice,
    uuid=texts.map(GpuUuid),
    index=st.integers(0, 15),
    vendor=st.just("NVIDIA"),
    type=texts,
    slots=st.integers(0, 100),
    memory_mib=st.integers(0, 2**31 - 1),
    core_percent=st.integers(0, 1000),
    numa=st.integers(0, 7),
    mode=texts,
    healthy=st.booleans(),
    mig_profiles=st.lists(profiles, max_size=2).map(tuple),
)
lists = st.lists(devices, max_size=4, unique_by=lambda device: device.uuid)


@settings(max_examples=100)
@given(lists)
def test_json_comes_back_as_it_was(cards: list[GpuDevice]) -> None:
    assert decode_register(encode_register(cards)) == tuple(cards)


def test_pair_scores_are_hamis_json_and_come_back() -> None:
    scores = {GpuUuid("a"): {GpuUuid("b"): 100}, GpuUuid("b"): {GpuUuid("a"): 100}}
    text = encode_pair_scores(scores)

    assert text == '[{"uuid":"a","score":{"b":100}},{"uuid":"b","score":{"a":100}}]'
    assert decode_pair_scores(text) == scores
    assert decode_pair_scores('[{"uuid":"a"}]') == {"a": {}}


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"uuid":"a","score":[]}]',
                                  '[{"uuid":"a","score":{"b":"x"}}]'])  # fmt: skip
def test_malformed_pair_scores_are_refused(text) -> None:
    with pytest.raises(InvalidRequest, match="pair score"):
        decode_pair_scores(text)


def test_unicode_is_written_as_it_is() -> None:
    text = encode_register([GpuDevice(**{**_fields(GPU), "type": "NVIDIA é"})])
    assert "é" in text
    assert json.loads(text)[0]["type"] == "NVIDIA é"


def _fields(device: GpuDevice) -> dict[str, object]:
    return {name: getattr(device, name) for name in device.__slots__}
