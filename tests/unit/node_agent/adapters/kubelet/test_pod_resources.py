"""PodResources' view of pods' claims, over a real socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from hami_node_agent.adapters.kubelet.state import KubeletStateReader
from hamicommon.errors import Unavailable
from hamicommon.kubelet_api._generated import podresources_pb2 as api
from hamicommon.kubelet_api._generated import podresources_pb2_grpc


def a_claim(driver: str, *devices: str) -> api.DynamicResource:
    return api.DynamicResource(
        claim_name="shared",
        claim_namespace="default",
        claim_resources=[
            api.ClaimResource(
                driver_name=driver, cdi_devices=[api.CDIDevice(name=name) for name in devices]
            )
        ],
    )


def a_pod(name: str, *claims: api.DynamicResource) -> api.PodResources:
    return api.PodResources(
        name=name,
        namespace="default",
        containers=[api.ContainerResources(name="main", dynamic_resources=claims)],
    )


class Lister(podresources_pb2_grpc.PodResourcesListerServicer):
    async def List(self, request: Any, context: Any) -> api.ListPodResourcesResponse:
        del request, context
        return api.ListPodResourcesResponse(
            pod_resources=[
                a_pod("first", a_claim("gpu.hami.io", "hami.io/slice=one")),
                a_pod("second", a_claim("gpu.hami.io", "hami.io/slice=one")),
                a_pod("third", a_claim("gpu.hami.io"), a_claim("gpu.hami.io", "hami.io/slice=two")),
                a_pod("others", a_claim("gpu.example.com", "hami.io/slice=not-ours")),
                a_pod("odd", a_claim("gpu.hami.io", "example.com/gpu=not-ours")),
                a_pod("by-limits"),
            ]
        )


def a_reader(socket: Path) -> KubeletStateReader:
    return KubeletStateReader(
        checkpoint=socket.parent / "checkpoint",
        pod_resources=socket,
        resource="nvidia.com/gpu",
        uid_of=lambda _namespace, _name: "",
    )


async def test_slices_that_pods_have_by_claims_are_known_by_their_nonces(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    server = grpc.aio.server()
    podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(Lister(), server)  # type: ignore[no-untyped-call]  # generated
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        assert await a_reader(socket).claim_nonces() == {"one", "two"}
        assert await a_reader(socket).claiming() == {
            ("default", name, "main") for name in ("first", "second", "third")
        }
    finally:
        await server.stop(0)


async def test_a_kubelet_that_does_not_answer_is_unknown_and_not_without_claims(
    tmp_path: Path,
) -> None:
    with pytest.raises(Unavailable):
        await a_reader(tmp_path / "kubelet.sock").claim_nonces()
