"""HAMi's `config.json` (protocol 5.2)."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hami_node_agent.config.hami_node_config import NodeFile, load, parse
from hami_node_agent.config.settings import Settings
from hamicommon.errors import InvalidRequest


def read(*entries: dict[str, Any], node: str = "node-1") -> NodeFile:
    return parse(orjson.dumps({"nodeconfig": entries}), node)


def test_an_entry_of_our_name_has_it_all() -> None:
    found = read(
        {
            "name": "node-1",
            "operatingmode": "whole",
            "filterdevices": {"uuid": ["GPU-a"], "index": [2]},
            "enablegetpreferredallocation": False,
            "devicesplitcount": 4,
            "devicememoryscaling": 1.5,
            "devicecorescaling": 2,
            "preconfigureddevicememory": 1000,
            "libcudaloglevel": "3",
            "enablenumatopology": True,
        }
    )

    assert found == NodeFile(
        settings={
            "operating_mode": "whole",
            "device_split_count": 4,
            "device_memory_scaling": 1.5,
            "device_core_scaling": 2.0,
            "preconfigured_device_memory_mib": 1000,
            "libcuda_log_level": "3",
            "enable_numa_topology": True,
            "hidden_devices": ("GPU-a", "2"),
        },
        notes=(
            "nodeconfig[0].enablegetpreferredallocation: it has no effect: the kubelet asks "
            "whenever the choice matters",
            "HAMi's config.json is deprecated and goes with 0.4.0",
        ),
    )
    assert found.settings.keys() <= Settings.model_fields.keys()


def test_entries_of_our_name_are_merged_in_order_and_others_are_not_ours() -> None:
    found = read(
        {"name": "node-1", "devicesplitcount": 4, "devicememoryscaling": 2},
        {"name": "node-2", "devicesplitcount": 9},
        {"name": "node-1", "devicesplitcount": 5},
    )

    assert found.settings == {"device_split_count": 5, "device_memory_scaling": 2.0}


def test_zero_values_override_nothing() -> None:
    found = read(
        {
            "name": "node-1",
            "devicesplitcount": 0,
            "libcudaloglevel": "",
            "operatingmode": "",
            "enablenumatopology": False,
            "devicememoryscaling": None,
            "filterdevices": {"uuid": [], "index": []},
        }
    )

    assert found == NodeFile()


def test_keys_are_read_in_any_case_as_go_does() -> None:
    assert read({"Name": "node-1", "deviceSplitCount": 3}).settings == {"device_split_count": 3}


def test_unknown_keys_are_reported_with_a_sentence() -> None:
    found = read(
        {"name": "node-1", "devicesplitcuont": 3, "filterdevices": {"uuids": ["x"]}},
        {"name": "another", "nonsense": 1},
    )

    assert found.settings == {}
    assert found.notes == (
        "nodeconfig[0].devicesplitcuont: unknown key, it is ignored; "
        "did you mean devicesplitcount?",
        "nodeconfig[0].filterdevices.uuids: unknown key, it is ignored; did you mean uuid?",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "no JSON"),
        (b"[]", "the file: an object is wanted"),
        (b'{"nodeconfig": {}}', "a list of nodes is wanted"),
        (
            b'{"nodeconfig": [{"name": "node-1", "devicesplitcount": "4"}]}',
            r"nodeconfig\[0\]\.devicesplitcount is '4': Input should be a valid integer",
        ),
        (
            b'{"nodeconfig": [{"name": "node-1", "filterdevices": {"index": ["0"]}}]}',
            r"nodeconfig\[0\]\.filterdevices\.index\.0 is '0': Input should be a valid integer",
        ),
    ],
)
def test_what_cannot_be_read_is_named(content: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse(content, "node-1")


def test_without_a_file_nothing_is_overridden(tmp_path: Path) -> None:
    assert load(tmp_path / "config.json", "node-1") == NodeFile()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InvalidRequest, match=r"config\.json: it can't be read"):
        load(tmp_path / "config.json", "node-1")
