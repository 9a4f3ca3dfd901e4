"""One-line values for the node-agent's tests."""

from pathlib import Path, PurePosixPath
from typing import Any

from hami_node_agent.allocation.node_ports import NodePorts
from hami_node_agent.allocation.response import AnswerPolicy
from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.ports import ForeignAnswer, Holding, KeptAnswer
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.allocations import AllocationState, ContainerGrant, DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid
from hamicommon.domain.requests import Role

CARD_A = GpuUuid("GPU-aaaaaaaa-0000-0000-0000-000000000001")
CARD_B = GpuUuid("GPU-bbbbbbbb-0000-0000-0000-000000000002")


def a_share(card: str = CARD_A, memory_mib: int = 4096, core_percent: int = 30) -> DeviceShare:
    return DeviceShare(
        uuid=GpuUuid(card), vendor="NVIDIA", memory_mib=memory_mib, core_percent=core_percent
    )


def a_container(
    *shares: DeviceShare, name: str = "main", index: int = 0, role: Role = "app"
) -> ContainerGrant:
    return ContainerGrant(index=index, name=name, role=role, shares=shares)


def a_grant(
    *containers: ContainerGrant,
    pod: str = "pod-1",
    token: int = 1,
    state: AllocationState = AllocationState.BINDING,
    heard_at: float = 0.0,
) -> NodeGrant:
    return NodeGrant(
        allocation_id=AllocationId(f"allocation-of-{pod}"),
        pod_uid=PodUid(pod),
        namespace="default",
        pod_name=f"name-of-{pod}",
        token=token,
        containers=containers or (a_container(a_share()),),
        state=state,
        offered=True,
        heard_at=heard_at,
    )


def a_record(
    grant: NodeGrant, container: str = "main", *, ids: set[str], nonce: str = "nonce-1"
) -> Record:
    granted = grant.container(container)
    assert granted is not None
    return Record(
        nonce=nonce,
        device_ids=frozenset(ids),
        allocation_id=grant.allocation_id,
        pod_uid=grant.pod_uid,
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        container=granted.name,
        role=granted.role,
        token=grant.token,
        shares=granted.shares,
        cache_dir=f"{grant.pod_uid}_{granted.name}",
    )


def a_book(*grants: NodeGrant) -> GrantBook:
    book = GrantBook()
    for grant in grants:
        book = book.with_grant(grant)
    return book


def a_holding(
    pod: str, container: str = "main", *, ids: set[str], record: Record | None = None
) -> Holding:
    answer = None
    if record is not None:
        answer = KeptAnswer(nonce=record.nonce, cards=record.cards, cache_dir=record.cache_dir)
    return Holding(pod_uid=pod, container=container, device_ids=frozenset(ids), answer=answer)


def a_foreign_holding(pod: str = "pod-1", *cards: str) -> Holding:
    """With the answer of HAMi's device plugin, which showed `cards` (CARD_A) to the container."""
    return Holding(
        pod_uid=pod,
        container="main",
        device_ids=frozenset({f"{CARD_B}-0"}),
        foreign=ForeignAnswer(
            visible=cards or (CARD_A,), memory_mib=(4096,), core_percent=30, cache_dir="x_main"
        ),
    )


def a_card(uuid: str = CARD_A, **changes: int) -> GpuDevice:
    fields: dict[str, Any] = {"slots": 10, "memory_mib": 81920, "core_percent": 100, "index": 0}
    fields |= changes
    return GpuDevice(uuid=GpuUuid(uuid), vendor="NVIDIA", type="NVIDIA A100", **fields)


def node_ports(state: NodeState, played: Any) -> NodePorts:
    """The ports of a node that one object plays."""
    return NodePorts(
        state=state,
        kubelet_state=played,
        source=played,
        pods=played,
        files=played,
        reports=Reports("n"),
    )


class QuietNode:
    """Ports of a node with its state in memory and no files."""

    def save(self, state: AgentState) -> None:
        """Always succeeds."""

    async def container_env(self, grant: NodeGrant, container: str) -> dict[str, str]:
        del grant, container
        return {}

    def limits_dir(self, nonce: str) -> Path:
        return Path("/limits") / nonce

    def write_limits(self, record: Record) -> None:
        """Do nothing: no case looks at files."""

    def make_cache_dir(self, name: str, nonce: str) -> None:
        """Do nothing: no case looks at files."""

    keep_cache_dir = make_cache_dir


ANSWERS = AnswerPolicy(
    container_base=PurePosixPath("/usr/local/vgpu"),
    host_base=PurePosixPath("/usr/local/vgpu"),
    library=PurePosixPath("/usr/local/vgpu/libvgpu.so"),
)
