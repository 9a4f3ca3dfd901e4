"""Cards of a Node without our agent."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hami_scheduler.watch.node_annotations import NodeAnnotations, looks, question, read_annotations
from hamicommon.device_config import DeviceConfig
from hamicommon.vendors.registry import Vendors

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True)
REGISTER, HANDSHAKE = "hami.io/node-register-Ascend910B3", "hami.io/node-handshake-Ascend910B3"
COUNT = "huawei.com/Ascend910B3"
CHIP = {"id": "npu-0", "count": 4, "devmem": 65536, "devcore": 20, "type": "Ascend910B3"}
GPU = {"id": "GPU-0", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100"}


def node(annotations: dict[str, Any], **allocatable: str) -> dict[str, Any]:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in annotations.items()}
    return {
        "metadata": {"name": "n", "annotations": texts},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def chips(handshake: str | None, **allocatable: str) -> NodeAnnotations:
    written: dict[str, Any] = {REGISTER: [CHIP | {"health": True}]}
    if handshake is not None:
        written[HANDSHAKE] = handshake
    return read_annotations(node(written, **allocatable), VENDORS, NOW)


def handshake_question(seconds_ago: float) -> str:
    return question(NOW - timedelta(seconds=seconds_ago))


@pytest.mark.parametrize(
    ("handshake", "listed", "alive", "asks", "open_"),
    [
        pytest.param(None, "0", True, True, False, id="never-asked"),
        pytest.param("Reported_2026-05-01 11:59:59", "0", True, True, False, id="answered"),
        pytest.param("Deleted_2026-05-01 11:59:59", "0", True, True, False, id="older-version"),
        pytest.param(handshake_question(59), "0", True, False, True, id="asked-just-now"),
        pytest.param(handshake_question(61), "4", True, False, False, id="silent-but-listed"),
        pytest.param(handshake_question(61), "0", False, False, False, id="silent"),
        pytest.param("Requesting", "0", True, False, True, id="no-time"),
        pytest.param("Requesting_soon", "0", True, False, True, id="no-readable-time"),
    ],
)
def test_a_plugin_lives_while_its_handshake_or_the_kubelet_shows_so(
    handshake: str | None, listed: str, alive: bool, asks: bool, open_: bool
) -> None:
    found = chips(handshake, **{COUNT: listed})

    assert [d.uuid for d in found.devices] == (["npu-0"] if alive else [])
    assert found.questions == ({HANDSHAKE: "Requesting_2026-05-01 12:00:00"} if asks else {})
    assert found.asked is open_


def test_a_node_that_never_had_such_cards_is_asked_nothing() -> None:
    """TRAP-11: HAMi stamps every node with every vendor's handshake."""
    assert read_annotations(node({}), VENDORS, NOW) == NodeAnnotations()


def test_of_a_dead_plugin_nothing_is_deleted_its_handshake_stays() -> None:
    """TRAP-19: HAMi deletes the handshake, and for AMD the register annotation itself."""
    card = {"id": "amd-0", "count": 4, "devmem": 1000, "devcore": 304, "type": "MI300X"}
    written = {
        REGISTER: [CHIP | {"health": True}],
        HANDSHAKE: handshake_question(seconds_ago=61),
        "hami.io/node-amd-register": [card],
    }

    found = read_annotations(node(written, **{COUNT: "0", "amd.com/gpu": "0"}), VENDORS, NOW)

    assert found.devices == ()
    assert found.questions == {}


def test_what_is_malformed_is_named_and_the_rest_is_read() -> None:
    found = read_annotations(
        node({REGISTER: "[{", "hami.io/node-nvidia-register": [GPU]}, **{"nvidia.com/gpu": "10"}),
        VENDORS,
        NOW,
    )

    assert [d.uuid for d in found.devices] == ["GPU-0"]
    assert list(found.malformed) == ["Ascend910B3"]
    assert not found.empty


def test_bad_pair_scores_are_a_malformed_node() -> None:
    found = read_annotations(
        node(
            {"hami.io/node-nvidia-register": [GPU], "hami.io/node-nvidia-score": "x"},
            **{"nvidia.com/gpu": "10"},
        ),
        VENDORS,
        NOW,
    )

    assert found.devices == ()
    assert list(found.malformed) == ["NVIDIA"]


def test_of_a_node_with_our_agent_nothing_is_believed() -> None:
    written = {"hami.io/node-agent": "hami-node-agent", "hami.io/node-nvidia-register": [GPU]}

    assert read_annotations(node(written, **{"nvidia.com/gpu": "10"}), VENDORS, NOW).empty


def test_a_heartbeat_of_the_kubelet_looks_like_nothing_new() -> None:
    old, new = node({"a": "b"}), node({"a": "b"})
    new["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "now"}]

    assert looks(new) == looks(old)
    assert looks(node({"a": "c"})) != looks(old)
