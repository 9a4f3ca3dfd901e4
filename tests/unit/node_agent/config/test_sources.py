"""Precedence of settings: operator, node file, device configuration, HAMi's weak flags, default."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hami_node_agent.config import hami_node_config
from hami_node_agent.config.sources import ConfiguredSettings, environment, read_configuration
from hamicommon.errors import InvalidRequest

NODE = "node-1"
OURS = "HAMI_NODE_AGENT_"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets variables and files, and reads."""

    def read(
        *arguments: str,
        device_config: str | None = None,
        node: dict[str, Any] | None = None,
        **variables: str,
    ) -> ConfiguredSettings:
        file = tmp_path / "config.json"
        entries = [] if node is None else [{"name": NODE, **node}]
        file.write_bytes(orjson.dumps({"nodeconfig": entries}))
        all_of_them = {
            "HAMI_NATS_URL": "nats://localhost:4222",
            "NODE_NAME": NODE,
            **variables,
        }
        if device_config is not None:
            (tmp_path / "device-config.yaml").write_text(device_config)
            all_of_them["CONFIG_FILE"] = str(tmp_path / "device-config.yaml")
        for name, value in all_of_them.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(hami_node_config, "PATH", file)
        return read_configuration(arguments, environment())

    return read


YAML = "nvidia: {deviceSplitCount: 4, deviceMemoryScaling: 2, resourceCountName: example.com/gpu}"


def test_the_device_configuration_fills_in_what_nobody_sets(read: Any) -> None:
    found = read(device_config=YAML).settings

    assert (found.node_name, found.device_split_count) == (NODE, 4)
    assert (found.device_memory_scaling, found.resource_name) == (2.0, "example.com/gpu")


def test_the_nodes_file_counts_before_the_device_configuration(read: Any) -> None:
    found = read(device_config=YAML, node={"devicesplitcount": 7}).settings

    assert (found.device_split_count, found.device_memory_scaling) == (7, 2.0)


def test_our_variable_counts_before_both(read: Any) -> None:
    variables = {f"{OURS}DEVICE_SPLIT_COUNT": "3"}

    found = read(device_config=YAML, node={"devicesplitcount": 7}, **variables)

    assert found.settings.device_split_count == 3


def test_what_hami_reads_without_using_it_counts_only_without_a_device_configuration(
    read: Any,
) -> None:
    assert read(device_config=YAML, DEVICE_SPLIT_COUNT="9").settings.device_split_count == 4
    assert read("--config-file=", DEVICE_SPLIT_COUNT="9", CONFIG_FILE="").settings


def test_without_a_device_configuration_hamis_variables_count(read: Any) -> None:
    assert read(DEVICE_SPLIT_COUNT="9").settings.device_split_count == 9


def test_options_that_mean_nothing_are_reported(read: Any) -> None:
    found = read("-v=5", node={"migstrategy": "mixed"}, **{f"{OURS}LEGACY_METRICS": "true"})

    assert [note.partition(" ")[0] for note in found.notes[:2]] == ["NODE_NAME", "--v"]
    assert "config.json: nodeconfig[0].migstrategy" in found.notes[2]
    assert found.notes[3:] == ("HAMi's older metric names are deprecated and read until 0.4.0",)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"device_config": "nvidia: {deviceSplitCount: 0}"}, "deviceSplitCount is 0"),
        ({"device_config": "hygon: {}"}, "no block nvidia"),
        ({"device_config": "nvidia: {deviceSplitCuont: 1}"}, "deviceSplitCuont"),
        ({"node": {"operatingmode": "fast"}}, "_OPERATING_MODE: Input should be"),
        ({"DEVICE_LIST_STRATEGY": "envvar,shout"}, "_DEVICE_LIST_STRATEGY"),
    ],
)
def test_what_makes_no_sense_is_refused(read: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read(**options)


def test_a_variable_that_is_no_setting_is_reported(read: Any) -> None:
    found = read(**{f"{OURS}DRIAN_S": "5", f"{OURS}NVML_TIMEOUT_S": "5"})

    notes = [note for note in found.notes if "no setting" in note]
    assert notes == [f"{OURS}DRIAN_S is ignored: it is no setting"]
