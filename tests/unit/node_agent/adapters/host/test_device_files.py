"""The files of cards under /dev, also of cards that are plugged in while the agent runs."""

from __future__ import annotations

from pathlib import Path

from hami_node_agent.adapters.host.device_files import CardNames
from hami_node_agent.devices.device_list import DeviceListPolicy, Strategy, device_list
from hami_node_agent.devices.offer import CardFacts
from hamicommon.domain.ids import GpuUuid

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def facts(uuid: GpuUuid, index: int) -> CardFacts:
    return CardFacts(uuid=uuid, index=index, name="A10", memory_mib=1000, minor=index)


def test_a_card_that_is_plugged_in_has_its_files_and_its_index_at_once(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    names = CardNames(tmp_path)
    names.learn([facts(A, 0)])
    policy = DeviceListPolicy(
        strategies=frozenset({Strategy.ENVVAR}),
        id_strategy="index",
        index_of=names.index_of,
        device_files=names.control_files,
        card_files=names.card_files,
    )

    (tmp_path / "nvidia-uvm").touch()
    names.learn([facts(A, 0), facts(B, 3)])
    answer = device_list([B], response_id="r", policy=policy)

    assert dict(answer.envs)["NVIDIA_VISIBLE_DEVICES"] == "3"
    assert dict(answer.device_files) == {
        "/dev/nvidiactl": str(tmp_path / "nvidiactl"),
        "/dev/nvidia-uvm": str(tmp_path / "nvidia-uvm"),
        "/dev/nvidia3": str(tmp_path / "nvidia3"),
    }
