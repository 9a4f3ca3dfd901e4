"""How values are written, and that the page has all of them."""

from pathlib import Path

import pytest
from hami_node_agent.config.hami_flags import FLAGS
from hami_node_agent.config.hami_node_config import KEYS
from hami_node_agent.config.settings import Settings
from hami_node_agent.devices.device_list import Strategy

PAGE = Path(__file__).parents[4] / "docs/node-agent.md"
GROUPS = {"nats", "kubernetes", "telemetry", "failpoints"}
"""Shared by all services."""
HAMIS_NAMES = {"disable_health_checks", "enable_health_checks"}


def test_lists_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("HAMI_NODE_AGENT_NODE_NAME", "n"),
        ("HAMI_NATS_URL", "nats://localhost:4222"),
        ("HAMI_NODE_AGENT_DEVICE_LIST_STRATEGY", "envvar, cdi-cri"),
        ("HAMI_NODE_AGENT_IMEX_CHANNEL_IDS", "0,7"),
        ("HAMI_NODE_AGENT_HIDDEN_UUIDS", "GPU-a,GPU-b"),
    ):
        monkeypatch.setenv(name, value)

    found = Settings()

    assert found.device_list_strategy == (Strategy.ENVVAR, Strategy.CDI_CRI)
    assert found.imex_channel_ids == (0, 7)
    assert found.hidden_uuids == ("GPU-a", "GPU-b")


def test_the_page_has_every_setting_every_flag_and_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    wanted = {name.upper() for name in Settings.model_fields.keys() - GROUPS - HAMIS_NAMES}
    wanted |= {f"--{name}" for flag in FLAGS for name in flag.names if len(name) > 1}
    wanted |= {name for flag in FLAGS for name in flag.variables} | set(KEYS)

    assert {name for name in wanted if f"`{name}`" not in page} == set()
