"""A DaemonSet of HAMi's plugin says what it said, to our agent."""

from pathlib import Path
from typing import Any

import pytest
from hami_node_agent.config.hami_flags import FLAGS, HamiOptions, told_by
from hami_node_agent.config.settings import Settings
from hamicommon.errors import InvalidRequest


def test_a_flag_counts_before_its_variable_and_ours_before_hamis() -> None:
    variables = {
        "MIG_STRATEGY": "mixed",
        "DEVICE_ID_STRATEGY": "index",
        "GDS_ENABLED": "true",
        "HAMI_NODE_AGENT_GDS_ENABLED": "0",
    }

    told = told_by(["--mig-strategy=none", "--kubelet-socket", "/k/kubelet.sock"], variables)

    assert told == HamiOptions(
        settings={
            "mig_strategy": "none",
            "device_id_strategy": "index",
            "kubelet_socket_dir": Path("/k"),
        }
    )


@pytest.mark.parametrize(
    ("word", "settings"),
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
def test_a_flag_is_a_setting(word: str, settings: dict[str, Any]) -> None:
    assert told_by([word], {}).settings == settings


def test_hook_path_is_the_base_on_the_host_and_in_containers() -> None:
    assert told_by([], {"HOOK_PATH": "/opt"}).settings == {
        "hook_path": "/opt",
        "container_hook_path": "/opt",
    }


def test_what_hami_reads_without_using_it_is_weak() -> None:
    told = told_by(["--device-split-count=4", "--disable-core-limit"], {})

    assert told.settings == {}
    assert told.weak == {"device_split_count": "4", "disable_core_limit": True}


def test_what_means_nothing_here_is_said_in_a_sentence() -> None:
    told = told_by(["-v=4"], {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"})

    assert [note.partition(":")[0] for note in told.notes] == ["NVIDIA_DRIVER_ROOT", "--v"]


@pytest.mark.parametrize(
    ("words", "variables", "why"),
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
def test_a_word_that_makes_no_sense_is_named(
    words: list[str], variables: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        told_by(words, variables)


def test_every_flag_tells_settings_that_there_are_or_why_it_tells_none() -> None:
    samples = ("true", "/x/kubelet.sock", "auto")
    for flag in FLAGS:
        if flag.tells is None:
            assert flag.unused
            continue
        for sample in samples:
            try:
                assert flag.tells(sample).keys() <= Settings.model_fields.keys()
                break
            except InvalidRequest:
                continue
        else:
            pytest.fail(f"no sample fits {flag.names}")
