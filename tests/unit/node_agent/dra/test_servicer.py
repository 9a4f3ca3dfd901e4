"""Answers to the kubelet about a claim's devices."""

from __future__ import annotations

from typing import Any, cast

from hami_node_agent.dra.preparation import ClaimPreparation, ClaimRef, PreparedDevice
from hami_node_agent.dra.server import DraService
from hamicommon.dra.claims import AllocatedDevice
from hamicommon.errors import Conflict
from hamicommon.kubelet_api._generated import dra_pb2


class Preparing:
    """Prepared devices by claim name."""

    def __init__(self, **claims: tuple[PreparedDevice, ...]) -> None:
        self._claims = claims

    async def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        if ref.name not in self._claims:
            raise Conflict("the card is full")
        return self._claims[ref.name]


def make_prepared(request: str) -> PreparedDevice:
    device = AllocatedDevice(
        claim_uid="u",
        claim="c",
        request=request,
        pool="n1",
        device="gpu-1",
        share_id="s",
        memory_mib=1,
        core_percent=0,
        slots=1,
    )
    return PreparedDevice(device=device, cdi_devices=("hami.io/slice=nonce",))


async def answer(*names: str, **claims: tuple[PreparedDevice, ...]) -> Any:
    service = DraService(cast(ClaimPreparation, Preparing(**claims)))
    asked = dra_pb2.NodePrepareResourcesRequest(
        claims=[dra_pb2.Claim(namespace="ns", uid=f"uid-{name}", name=name) for name in names]
    )
    return await service.NodePrepareResources(asked, cast(Any, None))


async def test_each_claim_has_an_entry_with_its_devices_or_the_reason() -> None:
    found = await answer("good", "full", good=(make_prepared("gpu"),))
    assert found.claims["uid-full"].error == "the card is full"
    [device] = found.claims["uid-good"].devices
    assert (list(device.request_names), device.pool_name, device.device_name, device.share_id) == (
        ["gpu"],
        "n1",
        "gpu-1",
        "s",
    )
    assert list(device.cdi_device_ids) == ["hami.io/slice=nonce"]


async def test_an_alternative_is_answered_by_the_name_that_containers_use() -> None:
    """The kubelet finds no container for `gpu/mib-81920`, which then starts without its card."""
    found = await answer("good", good=(make_prepared("gpu/mib-81920"),))
    [device] = found.claims["uid-good"].devices
    assert list(device.request_names) == ["gpu"]
