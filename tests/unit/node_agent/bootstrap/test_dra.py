"""Conditions under which cards are devices of Dynamic Resource Allocation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hami_node_agent.allocation.binding_way import BindingWay
from hami_node_agent.bootstrap.dra import DraDriver, obstacle_of, relies_on_proof
from hami_node_agent.config.settings import Settings
from hami_node_agent.dra.server import DriverSockets
from hamicommon.errors import InvalidRequest, Unavailable


class Node:
    """Reports one kubelet and runtime, or nothing."""

    def __init__(self, kubelet: str = "", runtime: str = "") -> None:
        self.reported = (kubelet, runtime)

    async def versions(self) -> tuple[str, str]:
        if not self.reported[0]:
            raise Unavailable("the API server is away")
        return self.reported


def settings(**more: object) -> Settings:
    fields = {"node_name": "n", "nats": {"url": "nats://nobody"}, "dra": "auto", **more}
    return Settings.model_validate(fields)


@pytest.mark.parametrize(
    ("more", "node", "reason"),
    [
        ({}, Node("v1.36.2", "cri-o://1.36.0"), ""),
        ({}, Node("v1.35.4", "cri-o://1.35.0"), "the kubelet is v1.35.4, and parts of cards need"),
        ({}, Node(), "the kubelet is of unknown version"),
        ({}, Node("v1.36.2", "containerd://2.1.9"), "set cri_socket"),
        # The operator answers for the runtime, as with binding=late.
        ({"dra": "on"}, Node("v1.36.2", "containerd://1.6.20"), ""),
        ({"dra": "on"}, Node("v1.34.1", "cri-o://1.34.0"), "the kubelet is v1.34.1"),
        ({"operating_mode": "mig"}, Node("v1.36.2", "cri-o://1.36.0"), "operating_mode is mig"),
        (
            {"device_list_strategy": "cdi-cri"},
            Node("v1.36.2", "cri-o://1.36.0"),
            "device_list_strategy names cards by CDI",
        ),
    ],
)
async def test_why_a_node_publishes_no_devices(
    more: dict[str, object], node: Node, reason: str
) -> None:
    found = await obstacle_of(settings(**more), node)
    assert reason in found if reason else found == ""


def test_a_proof_is_looked_at_again_only_where_something_rests_on_it() -> None:
    late = BindingWay(late=True, reason="proven")
    lock = BindingWay(late=False, reason="binding is set to lock")
    on, off = DraDriver(on=True, loops={}), DraDriver(on=False, loops={})
    assert relies_on_proof(settings(binding="auto"), late, off)
    assert relies_on_proof(settings(), lock, on)
    assert not relies_on_proof(settings(dra="on"), lock, on)
    assert not relies_on_proof(settings(), lock, off)


def test_a_folder_too_deep_for_a_socket_is_refused_with_the_path() -> None:
    with pytest.raises(InvalidRequest, match=r"kubelet_dir: .* is longer than 107 bytes"):
        DriverSockets(Path("/") / ("deep/" * 20))
