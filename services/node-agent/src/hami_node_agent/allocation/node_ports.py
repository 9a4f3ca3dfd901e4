"""What the use cases of one node share: its state, its ports, and how a slice is put in place.

Late-bound containers and those of ResourceClaims get theirs in the same way: a record, the limits
directory of its nonce, and a description by CDI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Protocol

from hamicommon.domain.allocations import ContainerGrant

from hami_node_agent.allocation.response import (
    LIMITS_MOUNT,
    AnswerPolicy,
    cache_dir_name,
    container_response,
    core_policy,
)
from hami_node_agent.allocation.whole_cards import runs_plain
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import ContainerFiles, GrantSource, KubeletState, NodePodApi
from hami_node_agent.grants.records import AgentState, Record, is_complete
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """One node's."""

    state: NodeState
    kubelet_state: KubeletState
    source: GrantSource
    pods: NodePodApi
    files: ContainerFiles
    reports: Reports


class DeviceDescriptions(Protocol):
    """What the container runtime reads."""

    def write(self, nonce: str, spec: ContainerSpec) -> None:
        """Describes a nonce once and for all (blocking). Raises: Unavailable."""

    def source_of(self, nonce: str, container_path: str) -> str:
        """What of the host is mounted there; empty: the nonce is not described (blocking).

        Raises: Unavailable.
        """


class DescribedSlices:
    """Slices that the runtime finds by a nonce."""

    def __init__(
        self, node: NodePorts, *, devices: DeviceDescriptions, answers: AnswerPolicy
    ) -> None:
        self._state = node.state
        self._files = node.files
        self._reports = node.reports
        self._devices = devices
        self._answers = answers

    def record(
        self,
        nonce: str,
        device_ids: frozenset[str],
        grant: NodeGrant,
        granted: ContainerGrant,
        env: Mapping[str, str],
    ) -> Record:
        """What is to be put in place; `device_ids`: the kubelet's, none of a claim."""
        shares = tuple(share for each in grant.containers for share in each.shares)
        return Record(
            nonce=nonce,
            device_ids=device_ids,
            allocation_id=grant.allocation_id,
            pod_uid=grant.pod_uid,
            namespace=grant.namespace,
            pod_name=grant.pod_name,
            container=granted.name,
            role=granted.role,
            token=grant.token,
            shares=granted.shares,
            policy=core_policy(env, self._answers),
            plain=runs_plain(shares, self._state.cards, env, self._answers),
            cache_dir=cache_dir_name(grant.pod_uid, granted.name),
        )

    def in_place(self, record: Record) -> Record | None:
        """The record with the folder that its nonce is described with already (blocking).

        A container may have it: another one would be another account. None: it is not described.
        Raises: Unavailable.
        """
        host = self._devices.source_of(record.nonce, str(self._answers.container_base))
        if host:
            return replace(record, cache_dir=PurePosixPath(host).name, plain=False)
        # Without the library only the limits are mounted.
        limits = self._devices.source_of(record.nonce, LIMITS_MOUNT)
        return replace(record, plain=True) if limits else None

    def make(self, record: Record, env: Mapping[str, str]) -> None:
        """Puts it in place for the first time (blocking). Raises: Unavailable."""
        self._files.make_cache_dir(record.cache_dir, record.nonce)
        self.put(record, env)

    def put(self, record: Record, env: Mapping[str, str]) -> None:
        """Puts back what is gone of it (blocking). Raises: Unavailable."""
        self._files.write_limits(record)
        self._files.keep_cache_dir(record.cache_dir, record.nonce)
        spec = container_response(
            record,
            limits_dir=str(self._files.limits_dir(record.nonce)),
            container_env=env,
            policy=self._answers,
        )
        self._devices.write(record.nonce, spec)

    def recorded(self, saved: AgentState, grant: NodeGrant, *records: Record) -> AgentState:
        """The state with them, and with the report once the pod has all that it was granted."""
        after = saved.with_records(records)
        if is_complete(grant, after.records.values()):
            after = after.with_report(self._reports.allocated(grant, after))
        return after
