"""Vendors whose plugin registers its cards on the Node."""

from hamicommon.device_config import HygonConfig
from hamicommon.vendors.hygon import KEYS, Hygon

VENDOR = Hygon(HygonConfig())


def registering(text: str) -> dict[str, object]:
    return {"metadata": {"name": "n", "annotations": {KEYS.register: text}}}


def test_cards_are_read_in_either_form_and_none_without_the_annotation() -> None:
    (from_json,) = VENDOR.node_devices(registering('[{"id":"a","count":1}]'))
    (from_csv,) = VENDOR.node_devices(registering("a,1,2,3,T,0,true:"))

    assert (from_json.uuid, from_csv.uuid) == ("a", "a")
    assert (from_json.vendor, from_csv.vendor) == ("DCU", "DCU")
    assert VENDOR.node_devices({"metadata": {"name": "n"}}) == ()
