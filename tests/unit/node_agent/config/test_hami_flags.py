"""A DaemonSet of HAMi's plugin means the same to our agent."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hami_node_agent.config.hami_flags import FLAGS, RETIRED, Flag, options_of
from hami_node_agent.config.hami_node_config import NodeFile, load, parse
from hami_node_agent.config.settings import Settings
from hamicommon.errors import InvalidRequest


def test_a_flag_counts_before_its_variable_and_ours_before_hamis() -> None:
    variables = {
        "MIG_STRATEGY": "mixed",
        "DEVICE_ID_STRATEGY": "index",
        "GDS_ENABLED": "true",
        "HAMI_NODE_AGENT_FEATURES": "",
    }

    options = options_of(
        ["--mig-strategy=none", "--kubelet-socket", "/k/device-plugins/kubelet.sock"], variables
    )

    assert options.settings == {
        "mig_strategy": "none",
        "device_id_strategy": "index",
        "kubelet_dir": Path("/k"),
    }


@pytest.mark.parametrize(
    ("argument", "settings"),
    [
        ("--pass-device-specs", {"pass_device_specs": True}),
        ("--pass-device-specs=F", {"pass_device_specs": False}),
        ("-imex-required", {"imex_required": True}),
        ("--gds-enabled", {"features": ("gds",)}),
        ("--gds-enabled=false", {"features": ()}),
        ("--nvidia-dev-root=/host", {"dev_root": Path("/host/dev")}),
        ("--dev-root=", {}),
        ("--device-discovery-strategy=auto", {}),
        ("--config-file=/d.yaml", {"device_config_file": "/d.yaml"}),
        ("--config-file=", {}),
    ],
)
def test_a_flag_is_a_setting(argument: str, settings: dict[str, Any]) -> None:
    assert options_of([argument], {}).settings == settings


def test_what_several_options_list_is_one_setting() -> None:
    variables = {
        "GDRCOPY_ENABLED": "true",
        "MOFED_ENABLED": "1",
        "DP_DISABLE_HEALTHCHECKS": "79, xids",
        "DP_ENABLE_HEALTHCHECKS": "31",
    }

    assert options_of([], variables).settings == {
        "features": ("gdrcopy", "mofed"),
        "health_checks": ("-79", "-xids", "31"),
    }


def test_a_variable_of_the_version_before_counts_and_is_named_with_what_replaces_it() -> None:
    variables = {
        "HAMI_NODE_AGENT_KUBELET_SOCKET_DIR": "/k/device-plugins",
        "HAMI_NODE_AGENT_POD_RESOURCES_SOCKET": "/k/pod-resources/kubelet.sock",
        "HAMI_NODE_AGENT_HIDDEN_UUIDS": "GPU-a,GPU-b",
        "HAMI_NODE_AGENT_HIDDEN_INDEXES": "3",
        "HAMI_NODE_AGENT_SCRAPE_TOKENS": "true",
        "HAMI_NODE_AGENT_SWEEP_INTERVAL_S": "1",
    }

    options = options_of([], variables)

    assert options.settings == {
        "kubelet_dir": Path("/k"),
        "hidden_devices": ("GPU-a", "GPU-b", "3"),
        "scrape_audience": "hami-metrics",
    }
    assert options.notes == (
        "HAMI_NODE_AGENT_KUBELET_SOCKET_DIR will be removed in the next release: "
        "set HAMI_NODE_AGENT_KUBELET_DIR",
        "HAMI_NODE_AGENT_POD_RESOURCES_SOCKET will be removed in the next release: "
        "set HAMI_NODE_AGENT_KUBELET_DIR",
        "HAMI_NODE_AGENT_HIDDEN_UUIDS will be removed in the next release: "
        "set HAMI_NODE_AGENT_HIDDEN_DEVICES",
        "HAMI_NODE_AGENT_HIDDEN_INDEXES will be removed in the next release: "
        "set HAMI_NODE_AGENT_HIDDEN_DEVICES",
        "HAMI_NODE_AGENT_SCRAPE_TOKENS will be removed in the next release: "
        "set HAMI_NODE_AGENT_SCRAPE_AUDIENCE",
        "HAMI_NODE_AGENT_SWEEP_INTERVAL_S will be removed in the next release: it is "
        "derived from HEARTBEAT_S",
    )


def test_what_hami_reads_without_using_it_is_weak() -> None:
    options = options_of(["--device-split-count=4", "--disable-core-limit"], {})

    assert options.settings == {}
    assert options.weak == {"device_split_count": "4", "disable_core_limit": True}


def test_each_option_that_is_used_is_named_in_a_sentence() -> None:
    variables = {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "MIG_STRATEGY": "none"}

    assert options_of(["-v=4"], variables).notes == (
        "MIG_STRATEGY of HAMi's plugin is deprecated and read until 0.4.0; "
        "set HAMI_NODE_AGENT_MIG_STRATEGY",
        "NVIDIA_DRIVER_ROOT of HAMi's plugin has no effect: the agent makes no CDI file of the "
        "driver: `nvidia-ctk cdi generate` of the node does",
        "--v of HAMi's plugin has no effect: HAMI_TELEMETRY_LOG_LEVEL sets how much is logged",
    )
    assert options_of([], {"MIG_STRATEGY": "none", "HAMI_NODE_AGENT_MIG_STRATEGY": "x"}).notes == ()


@pytest.mark.parametrize(
    ("arguments", "variables", "why"),
    [
        (
            ["--mig-stratgy=none"],
            {},
            "--mig-stratgy=none: no such flag; known flags: --mig-strategy",
        ),
        (["none"], {}, "none: no such flag"),
        (["--mig-strategy"], {}, "--mig-strategy: expected a value"),
        ([], {"GDS_ENABLED": "yes"}, "GDS_ENABLED: 'yes' is neither true nor false"),
        (
            ["--kubelet-socket=/x"],
            {},
            r"--kubelet-socket: '/x': expected a path that ends in /device-plug",
        ),
        (["--kubelet-socket="], {}, "--kubelet-socket: '': expected a path that ends in"),
        ([], {"DEVICE_DISCOVERY_STRATEGY": "tegra"}, "'tegra': cards are found through NVML"),
        (
            [],
            {"HAMI_NODE_AGENT_POD_RESOURCES_SOCKET": "/k/sock"},
            "'/k/sock': expected a path that ends in pod-resources/kubelet.sock, and "
            "HAMI_NODE_AGENT_KUBELET_DIR is the folder above",
        ),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(
    arguments: list[str], variables: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        options_of(arguments, variables)


@pytest.mark.parametrize("flag", [*FLAGS, *RETIRED], ids=lambda flag: flag.names or flag.variables)
def test_every_flag_means_a_setting_that_exists_or_has_a_reason_for_none(flag: Flag) -> None:
    if flag.setting:
        assert flag.setting in Settings.model_fields
    else:
        assert flag.unused or flag.names == "device-discovery-strategy"


def test_no_variable_is_a_setting_and_retired() -> None:
    retired = {name for flag in RETIRED for name in flag.variables.split()}

    assert not retired & {name.upper() for name in Settings.model_fields}


# --- HAMi's `config.json` (protocol 5.2)


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
            "HAMi's config.json is deprecated and read until 0.4.0",
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
        "nodeconfig[0].devicesplitcuont: unknown key, ignored; did you mean devicesplitcount?",
        "nodeconfig[0].filterdevices.uuids: unknown key, ignored; did you mean uuid?",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "the file: expected an object"),
        (b'{"nodeconfig": {}}', "expected a list of nodes"),
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
