"""How values are written, and that pages have all of them."""

from pathlib import Path

import pytest
from hami_node_agent.config.hami_flags import FLAGS
from hami_node_agent.config.hami_node_config import FilterKeys, NodeKeys
from hami_node_agent.config.settings import Settings
from hami_node_agent.devices.device_list import Strategy

PAGE = Path(__file__).parents[4] / "docs/node-agent.md"
GROUPS = {"nats", "kubernetes", "telemetry"}
"""Shared by all services."""


def test_lists_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("HAMI_NODE_AGENT_NODE_NAME", "n"),
        ("HAMI_NATS_URL", "nats://localhost:4222"),
        ("HAMI_NODE_AGENT_DEVICE_LIST_STRATEGY", "envvar, cdi-cri"),
        ("HAMI_NODE_AGENT_IMEX_CHANNEL_IDS", "0,7"),
        ("HAMI_NODE_AGENT_HIDDEN_DEVICES", "GPU-a,3"),
        ("HAMI_NODE_AGENT_FEATURES", "gds, mofed"),
        ("HAMI_NODE_AGENT_HEALTH_CHECKS", "-79,31"),
    ):
        monkeypatch.setenv(name, value)

    found = Settings()

    assert found.device_list_strategy == (Strategy.ENVVAR, Strategy.CDI_CRI)
    assert found.imex_channel_ids == (0, 7)
    assert found.hidden_devices == ("GPU-a", "3")
    assert found.features == ("gds", "mofed")
    assert found.health_checks == ("-79", "31")


def test_there_are_few_enough_to_be_read() -> None:
    assert len(Settings.model_fields) <= 51


def test_the_host_is_found_from_three_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HAMI_NODE_AGENT_NODE_NAME", "n")
    monkeypatch.setenv("HAMI_NATS_URL", "nats://localhost:4222")
    found = Settings(kubelet_dir=tmp_path, proc_root=tmp_path / "proc", mps_dir=tmp_path)

    assert found.checkpoint_path == tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    assert found.pod_resources_socket == tmp_path / "pod-resources" / "kubelet.sock"
    assert (found.cgroup_root, found.mps_shm_dir) == (Path("/sys/fs/cgroup"), None)
    for name in ("cgroup", "shm"):
        (tmp_path / name).mkdir()
    assert (found.cgroup_root, found.mps_shm_dir) == (tmp_path / "cgroup", tmp_path / "shm")


def test_every_setting_has_a_meaning_for_the_reference() -> None:
    fields = {name: Settings.model_fields[name] for name in Settings.model_fields.keys() - GROUPS}

    assert [name for name, field in fields.items() if not field.description] == []


def test_the_page_has_every_flag_and_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    wanted = {f"--{name}" for flag in FLAGS for name in flag.names.split() if len(name) > 1}
    wanted |= {name for flag in FLAGS for name in flag.variables.split()}
    wanted |= NodeKeys.model_fields.keys() | FilterKeys.model_fields.keys()

    assert {name for name in wanted if f"`{name}`" not in page} == set()
