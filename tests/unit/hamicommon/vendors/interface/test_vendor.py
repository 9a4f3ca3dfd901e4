"""Code that vendors share: registered cards, the handshake, listed amounts, env entries."""

import pytest
from hamicommon.device_config import HygonConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.interface.vendor import (
    answers_handshake,
    listed_amount,
    set_env,
)
from hamicommon.vendors.shares import Hygon

KEY = "hami.io/node-handshake-x"
VENDOR = Hygon(HygonConfig())


def node(annotations=None, **allocatable):
    return {
        "metadata": {"name": "n", "annotations": annotations},
        "status": {"allocatable": allocatable},
    }


@pytest.mark.parametrize(
    ("value", "lists", "alive"),
    [
        (None, "0", True),
        ("Reported_2026-01-02 03:04:05", "0", True),
        ("Deleted_2026-01-02 03:04:05", "0", True),
        ("Requesting_2026-01-02 03:04:05", "8", True),
        ("Requesting_2026-01-02 03:04:05", "0", False),
        ("Requesting_2026-01-02 03:04:05", "0.5", False),
        ("Requesting", None, False),
    ],
)
def test_a_plugin_lives_unless_it_was_asked_and_the_kubelet_lists_none(value, lists, alive) -> None:
    written = node({KEY: value} if value else None, **({"x/y": lists} if lists else {}))

    assert answers_handshake(written, KEY, "x/y") is alive


def test_what_a_node_lists_is_a_whole_number() -> None:
    assert listed_amount(node(**{"x/y": "4"}), "allocatable", "x/y") == 4
    assert listed_amount(node(), "allocatable", "x/y") == 0
    assert listed_amount({}, "capacity", "x/y") == 0
    for amount in ("0.5", "-1", "many"):
        with pytest.raises(InvalidRequest, match=r"quantity|whole number"):
            listed_amount(node(**{"x/y": amount}), "allocatable", "x/y")


def test_an_env_entry_is_set_once() -> None:
    container = {"env": [{"name": "A", "valueFrom": {}}, {"name": "B", "value": "1"}]}
    for _ in range(2):
        set_env(container, "A", "x")
        set_env(container, "C", "")

    assert container["env"] == [
        {"name": "A", "value": "x"},
        {"name": "B", "value": "1"},
        {"name": "C", "value": ""},
    ]
    bare = {"env": None}
    set_env(bare, "A", "x")
    assert bare["env"] == [{"name": "A", "value": "x"}]


def registering(text: str) -> dict[str, object]:
    return {"metadata": {"name": "n", "annotations": {VENDOR.keys.register: text}}}


def test_cards_are_read_in_either_form_and_none_without_the_annotation() -> None:
    (from_json,) = VENDOR.node_devices(registering('[{"id":"a","count":1}]'))
    (from_csv,) = VENDOR.node_devices(registering("a,1,2,3,T,0,true:"))

    assert (from_json.uuid, from_csv.uuid) == ("a", "a")
    assert (from_json.vendor, from_csv.vendor) == ("DCU", "DCU")
    assert VENDOR.node_devices({"metadata": {"name": "n"}}) == ()
