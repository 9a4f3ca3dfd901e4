"""A DaemonSet of HAMi's plugin means the same to our agent."""

from pathlib import Path
from typing import Any

import pytest
from hami_node_agent.config.hami_flags import FLAGS, HamiOptions, options_of
from hami_node_agent.config.settings import Settings
from hamicommon.errors import InvalidRequest


def test_a_flag_counts_before_its_variable_and_ours_before_hamis() -> None:
    variables = {
        "MIG_STRATEGY": "mixed",
        "DEVICE_ID_STRATEGY": "index",
        "GDS_ENABLED": "true",
        "HAMI_NODE_AGENT_GDS_ENABLED": "0",
    }

    options = options_of(["--mig-strategy=none", "--kubelet-socket", "/k/kubelet.sock"], variables)

    assert options == HamiOptions(
        settings={
            "mig_strategy": "none",
            "device_id_strategy": "index",
            "kubelet_socket_dir": Path("/k"),
        }
    )


@pytest.mark.parametrize(
    ("argument", "settings"),
    [
        ("--pass-device-specs", {"pass_device_specs": True}),
        ("--pass-device-specs=F", {"pass_device_specs": False}),
        ("-imex-required", {"imex_required": True}),
        ("--kubelet-socket=", {"register_with_kubelet": False}),
        ("--nvidia-dev-root=/host", {"dev_root": Path("/host/dev")}),
        ("--dev-root=", {}),
        ("--device-discovery-strategy=auto", {}),
        ("--config-file=/d.yaml", {"device_config_file": "/d.yaml"}),
    ],
)
def test_a_flag_is_a_setting(argument: str, settings: dict[str, Any]) -> None:
    assert options_of([argument], {}).settings == settings


def test_hook_path_is_the_base_on_the_host_and_in_containers() -> None:
    assert options_of([], {"HOOK_PATH": "/opt"}).settings == {
        "hook_path": "/opt",
        "container_hook_path": "/opt",
    }


def test_what_hami_reads_without_using_it_is_weak() -> None:
    options = options_of(["--device-split-count=4", "--disable-core-limit"], {})

    assert options.settings == {}
    assert options.weak == {"device_split_count": "4", "disable_core_limit": True}


def test_what_means_nothing_here_is_reported_in_a_sentence() -> None:
    options = options_of(["-v=4"], {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"})

    assert [note.partition(":")[0] for note in options.notes] == ["NVIDIA_DRIVER_ROOT", "--v"]


@pytest.mark.parametrize(
    ("arguments", "variables", "why"),
    [
        (["--mig-stratgy=none"], {}, "--mig-stratgy=none: no such flag; there are --mig-strategy"),
        (["none"], {}, "none: no such flag"),
        (["--mig-strategy"], {}, "--mig-strategy: a value is wanted"),
        ([], {"GDS_ENABLED": "yes"}, "GDS_ENABLED: 'yes' is neither true nor false"),
        (
            ["--kubelet-socket=/x"],
            {},
            r"--kubelet-socket: '/x': a path that ends in /kubelet\.sock",
        ),
        ([], {"DEVICE_DISCOVERY_STRATEGY": "tegra"}, "'tegra': cards are found through NVML"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(
    arguments: list[str], variables: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        options_of(arguments, variables)


def test_every_flag_means_settings_that_exist_or_has_a_reason_for_none() -> None:
    samples = ("true", "/x/kubelet.sock", "auto")
    for flag in FLAGS:
        if flag.meaning is None:
            assert flag.unused
            continue
        for sample in samples:
            try:
                assert flag.meaning(sample).keys() <= Settings.model_fields.keys()
                break
            except InvalidRequest:
                continue
        else:
            pytest.fail(f"no sample fits {flag.names}")
