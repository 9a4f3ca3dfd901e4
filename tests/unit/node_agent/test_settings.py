"""The node's defaults come from the device configuration, unless a variable says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hami_node_agent.domain.device_list import Strategy
from hami_node_agent.settings import Settings
from hamicommon.errors import InvalidRequest
from hamicommon.settings import NatsSettings


def settings(tmp_path: Path, text: str | None, **changes: Any) -> Settings:
    file = None
    if text is not None:
        file = tmp_path / "device-config.yaml"
        file.write_text(text)
    return Settings(
        node_name="n",
        nats=NatsSettings(url="nats://localhost:4222"),
        device_config_file=file,
        **changes,
    )


def test_the_file_fills_in_what_no_variable_says(tmp_path: Path) -> None:
    text = (
        "nvidia: {resourceCountName: example.com/gpu, deviceSplitCount: 4, deviceMemoryScaling: 2}"
    )

    found = settings(tmp_path, text, device_split_count=7).with_device_config()

    assert found.resource_name == "example.com/gpu"
    assert found.device_memory_scaling == 2.0
    assert found.device_split_count == 7


def test_without_a_file_nothing_changes(tmp_path: Path) -> None:
    made = settings(tmp_path, None)
    assert made.with_device_config() is made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("nvidia: {deviceSplitCount: 0}", "deviceSplitCount is 0", id="no-slot"),
        pytest.param("hygon: {}", "no block nvidia", id="no-block"),
        pytest.param("nvidia: {deviceSplitCuont: 1}", "deviceSplitCuont", id="misspelt"),
    ],
)
def test_a_file_that_makes_no_sense_here_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        settings(tmp_path, text).with_device_config()


def test_lists_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("HAMI_NODE_AGENT_NODE_NAME", "n"),
        ("HAMI_NATS_URL", "nats://localhost:4222"),
        ("HAMI_NODE_AGENT_DEVICE_LIST_STRATEGY", "envvar, cdi-cri"),
        ("HAMI_NODE_AGENT_IMEX_CHANNEL_IDS", "0,7"),
    ):
        monkeypatch.setenv(name, value)

    found = Settings()  # type: ignore[call-arg]

    assert found.device_list_strategy == (Strategy.ENVVAR, Strategy.CDI_CRI)
    assert found.imex_channel_ids == (0, 7)
