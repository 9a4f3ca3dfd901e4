"""Prepare a slice on the node: record, files, and CDI description.

Containers that bind late and those of ResourceClaims find theirs by a CDI file (`make`, `put`); the
others have it in the answer to Allocate (`write`, `spec`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Protocol

from hamicommon import telemetry
from hamicommon.domain.allocations import ContainerGrant
from hamicommon.errors import Conflict
from opentelemetry.trace import get_tracer

from hami_node_agent.allocation.response import (
    LIMITS_MOUNT,
    NOT_WHOLE,
    AnswerPolicy,
    cache_dir_name,
    container_response,
    core_policy,
    runs_plain,
)
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import ContainerFiles, GrantSource, KubeletState, NodePodApi
from hami_node_agent.grants.records import AgentState, Record, is_complete
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState

tracer = get_tracer(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Interfaces to one node: state, kubelet, pods and files."""

    state: NodeState
    kubelet_state: KubeletState
    source: GrantSource
    pods: NodePodApi
    files: ContainerFiles
    reports: Reports


@contextmanager
def allocate_span(grant: NodeGrant, container: ContainerGrant) -> Iterator[None]:
    """Trace the step in which a container gets its slices."""
    context = telemetry.extract({"traceparent": grant.traceparent})
    pod = telemetry.pod_attributes(grant.namespace, grant.pod_name, grant.pod_uid)
    attributes: dict[str, str | list[str]] = {
        **pod,
        "k8s.container.name": container.name,
        "hami.cards": [str(share.uuid) for share in container.shares],
    }
    with (
        tracer.start_as_current_span("allocate", context=context, attributes=attributes),
        telemetry.log_context(pod_uid=grant.pod_uid),
    ):
        yield


class DeviceDescriptions(Protocol):
    """Descriptions of devices for the container runtime."""

    def write(self, nonce: str, spec: ContainerSpec) -> None:
        """Describe a nonce, permanently (blocking). Raises: Unavailable."""

    def source_of(self, nonce: str, container_path: str) -> str:
        """Return the host path mounted there; empty if the nonce is not described (blocking).

        Raises: Unavailable.
        """


class DescribedSlices:
    """Slices of this node's containers, with records, files and descriptions."""

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
        """Return a new record; `device_ids`: the kubelet's, empty for a claim."""
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

    def renew(
        self, known: Record, grant: NodeGrant, granted: ContainerGrant, env: Mapping[str, str]
    ) -> Record:
        """Return the record of an existing answer under another grant of its pod.

        Raises: Conflict when it is not what that grant has.
        """
        fresh = self.record(known.nonce, known.device_ids, grant, granted, env)
        same_parts = [(s.uuid, s.detail) for s in fresh.shares] == [
            (s.uuid, s.detail) for s in known.shares
        ]
        if sorted(fresh.cards) != sorted(known.cards) or (known.mig_uuids and not same_parts):
            raise Conflict(
                "its slices are on other cards now; delete the pod; its controller recreates it"
            )
        plain = known.plain and self._answers.enforced
        if plain and not fresh.plain:
            raise Conflict(f"it was allocated without the library, {NOT_WHOLE}")
        return replace(
            fresh,
            foreign=known.foreign,
            plain=plain,
            cache_dir=known.cache_dir,
            mig_uuids=known.mig_uuids,
        )

    def in_place(self, record: Record) -> Record | None:
        """Return the record with the folder that the nonce's description already names (blocking).

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
        """Write a new record's files and description (blocking). Raises: Unavailable."""
        self._files.make_cache_dir(record.cache_dir, record.nonce)
        self.put(record, env)

    def put(self, record: Record, env: Mapping[str, str]) -> None:
        """Write a record's missing files and its description (blocking). Raises: Unavailable."""
        self.write(record)
        self._devices.write(record.nonce, self.spec(record, env))

    def write(self, record: Record, *, new: bool = False) -> None:
        """Write limits and cache folder, without a description (blocking).

        `new`: empty the cache directory. Raises: Unavailable.
        """
        self._files.write_limits(record)
        if new:
            self._files.make_cache_dir(record.cache_dir, record.nonce)
        elif record.cache_dir:
            self._files.keep_cache_dir(record.cache_dir, record.nonce)

    def spec(self, record: Record, env: Mapping[str, str]) -> ContainerSpec:
        """Return the devices, mounts and variables that the container gets."""
        return container_response(
            record,
            limits_dir=str(self._files.limits_dir(record.nonce)),
            container_env=env,
            policy=self._answers,
        )

    def add_records(self, saved: AgentState, grant: NodeGrant, *records: Record) -> AgentState:
        """Return the state with the records, and a report if the pod now has all its slices."""
        after = saved.with_records(records)
        if is_complete(grant, after.records.values()):
            after = after.with_report(self._reports.allocated_report(grant, after))
        return after
