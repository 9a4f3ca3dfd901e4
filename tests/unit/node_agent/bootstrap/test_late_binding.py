"""The choice of a node's way of binding, and its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hami_node_agent.bootstrap import late_binding
from hami_node_agent.bootstrap.late_binding import binding_way, keep_proven
from hami_node_agent.config.settings import Settings
from hamicommon.errors import InvalidRequest, Unavailable


class Node:
    """Reports one thing after the other; the last for ever."""

    def __init__(self, *reports: tuple[str, str] | None) -> None:
        self.reports = list(reports)

    async def versions(self) -> tuple[str, str]:
        reported = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if reported is None:
            raise Unavailable("the API server is away")
        return reported


CRI_O = ("v1.31.0", "cri-o://1.31.1")
CONTAINERD = ("v1.31.0", "containerd://2.1.9")


def settings(**more: object) -> Settings:
    fields = {
        "node_name": "n",
        "nats": {"url": "nats://nobody"},
        "crio_config_dir": "/nowhere",
        **more,
    }
    return Settings.model_validate(fields)


@pytest.mark.parametrize(
    ("more", "node", "way"),
    [
        ({"binding": "lock"}, Node(None), "lock: binding is set to lock"),
        ({"binding": "late"}, Node(None), "late: binding is set to late"),
        ({}, Node(CRI_O), "late: kubelet v1.31.0, cri-o 1.31.1: it supports CDI"),
        ({}, Node(None), "lock: nothing is proven at the agent's start: the API server is away"),
        ({}, Node(CONTAINERD), "lock: .*set cri_socket"),
        ({"cri_socket": Path("/nowhere")}, Node(CONTAINERD), "lock: .*/nowhere: no such socket"),
        ({"cri_socket": Path("/nowhere")}, Node(CRI_O), "late: .*it supports CDI"),
        ({"cdi_dir": "/opt/cdi"}, Node(CRI_O), "lock: .*in /etc/cdi, /var/run/cdi, and cdi_dir"),
        ({"device_list_strategy": "cdi-cri"}, Node(CRI_O), "lock: device_list_strategy names"),
    ],
)
async def test_the_way_is_shown_with_its_reason(
    more: dict[str, object], node: Node, way: str
) -> None:
    found = str(await binding_way(settings(**more), node))

    assert re.match(way, found), found


async def test_late_with_what_it_cannot_do_is_refused() -> None:
    given = settings(binding="late", device_list_strategy="cdi-cri")

    with pytest.raises(InvalidRequest, match="binding late: device_list_strategy names"):
        await binding_way(given, Node(CRI_O))


def test_a_node_binds_late_by_default_if_that_is_proven() -> None:
    assert Settings.model_fields["binding"].default == "auto"


async def test_a_proof_that_is_gone_ends_the_agent_and_one_that_cannot_be_had_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_binding, "PROOF_INTERVAL_S", 0.001)
    node = Node(CRI_O, None, None, ("v1.31.0", "cri-o://1.27.0"))

    with pytest.raises(Unavailable, match=r"no longer can be: .*cri-o 1\.27\.0"):
        await keep_proven(settings(), node, relied_on=True)

    assert len(node.reports) == 1
