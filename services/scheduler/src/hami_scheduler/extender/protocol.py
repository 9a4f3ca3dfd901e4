"""Wire format of kube-scheduler's extender protocol.

Field names are the untagged Go names on output; on input any case is accepted, as in Go's decoder
(kube-scheduler sends lower case). Answers always have HTTP status 200; errors are in `Error`.
Source: protocol 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

import orjson
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

MAX_BODY_BYTES = 1024 * 1024
"""Maximum bytes of a body, as in HAMi: a pod and the names of 5000 nodes."""
MAX_SIMULATION_BYTES = 16 * 1024 * 1024
"""Maximum bytes of a simulation's body: a pod and some 1500 Node objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderArgs:
    """Arguments of verbs about nodes."""

    pod: Json
    node_names: tuple[NodeName, ...] | None
    """Names of the nodes; None if the caller sent Node objects (`nodeCacheCapable: false`)."""
    nodes: tuple[Json, ...] | None
    """Node objects of /filter-simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Response to /filter; all five fields are always written.

    Every refused node is unresolvable, that is, none where kube-scheduler should try a preemption:
    its dry run asks no extender, so it finds no victim. It then names those nodes in the pod's
    condition, in an order that changes with each attempt; the changed condition wakes the pod, and
    the next attempt follows immediately.
    FailedNodes has the same nodes: kube-scheduler before 1.22 knows only that, newer ones give
    FailedAndUnresolvableNodes precedence. The node of the pod's room is only in FailedNodes,
    because kube-scheduler keeps a nomination only of such a node.
    """

    node_names: Sequence[str] | None = None
    nodes: Sequence[Json] | None = None
    refused: Mapping[NodeName, str] | None = None
    """Reasons by node."""
    awaited: Mapping[NodeName, str] = field(default_factory=dict)
    """Node on which the pod's room is being made, with the reason."""
    error: str = ""

    def to_json(self) -> bytes:
        """Return the body."""
        return orjson.dumps(
            {
                "Nodes": None if self.nodes is None else {"metadata": {}, "items": self.nodes},
                "NodeNames": self.node_names,
                "FailedNodes": {**(self.refused or {}), **self.awaited}
                if self.awaited
                else self.refused,
                "FailedAndUnresolvableNodes": self.refused,
                "Error": self.error,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BindArgs:
    """Arguments of /bind."""

    pod: PodRef
    node: NodeName


def host_priorities(scores: Mapping[NodeName, int] = MappingProxyType({})) -> bytes:
    """Return the answer of /prioritize-without-cards: a score from 0 to 10 per node."""
    return orjson.dumps([{"Host": node, "Score": score} for node, score in scores.items()])


def parse_extender_args(body: bytes) -> ExtenderArgs:
    """Parse the body of a verb about nodes.

    Raises: InvalidRequest with the text that HAMi answers, where it has one.
    """
    fields = _object(body)
    pod = fields.get("pod")
    if not isinstance(pod, dict):
        raise InvalidRequest("extender args missing pod")
    for part in ("metadata", "spec"):
        if not isinstance(pod.get(part) or {}, dict):
            raise InvalidRequest(f"extender args: pod.{part} must be an object")
    names = fields.get("nodenames")
    # Thousands of names on every call: both steps run in C.
    if names is not None and not (isinstance(names, list) and set(map(type, names)) <= {str}):
        raise InvalidRequest("extender args: NodeNames must be a list of strings")
    node_list = fields.get("nodes")
    items = _insensitive(node_list).get("items") if isinstance(node_list, dict) else None
    return ExtenderArgs(
        pod=pod,
        node_names=None if names is None else cast("tuple[NodeName, ...]", tuple(names)),
        nodes=tuple(items or ()) if isinstance(node_list, dict) else None,
    )


def names_of(nodes: Sequence[Json]) -> list[NodeName]:
    """Return the names of Node objects, in order."""
    return [NodeName(node["metadata"]["name"]) for node in nodes]


class NamesReader:
    """Parser that parses a list of nodes only if it differs from the previous one.

    kube-scheduler sends the names of thousands of nodes with every pod, usually the same ones, in
    the order in which its threads finished them. The end of the body that has them is compared as
    bytes, and parsed names are compared as a set. The same names in any order give the same tuple,
    which the engine recognizes.
    """

    _KEYS = (b'"nodenames":[', b'"NodeNames":[')

    def __init__(self) -> None:
        self._end = b""
        self._names: tuple[NodeName, ...] | None = None
        self._known: frozenset[NodeName] = frozenset()

    def parse(self, body: bytes) -> ExtenderArgs:
        """Parse the arguments of a call. Raises: InvalidRequest."""
        cut = max(map(body.rfind, self._KEYS))
        known = cut > 0 and self._names is not None
        if known and body[cut:] == self._end:
            args = parse_extender_args(body[:cut] + b'"nodenames":null}')
            return replace(args, node_names=self._names)
        args = parse_extender_args(body)
        if self._are_known(args.node_names):
            return replace(args, node_names=self._names)
        if cut > 0 and _is_list_of(body[cut:], args.node_names):
            self._end, self._names = body[cut:], args.node_names
            self._known = frozenset(self._names or ())
        return args

    def _are_known(self, names: tuple[NodeName, ...] | None) -> bool:
        known = self._names
        return (
            names is not None
            and known is not None
            and len(names) == len(known)
            and self._known == set(names)
        )


def _is_list_of(end: bytes, names: Sequence[str] | None) -> bool:
    """Return whether the end of a body is its list of nodes and nothing else."""
    try:
        alone = orjson.loads(b"{" + end)
    except orjson.JSONDecodeError:
        return False
    return names is not None and list(alone.values()) == [list(names)]


def parse_bind_args(body: bytes) -> BindArgs:
    """Parse the body of /bind.

    Raises: InvalidRequest naming the field that is missing.
    """
    fields = _object(body)
    values: dict[str, str] = {}
    for name in ("PodName", "PodNamespace", "PodUID", "Node"):
        value = fields.get(name.lower())
        if not isinstance(value, str) or not value:
            raise InvalidRequest(f"extender binding args: {name} is missing")
        values[name] = value
    pod = PodRef(values["PodNamespace"], values["PodName"], PodUid(values["PodUID"]))
    return BindArgs(pod=pod, node=NodeName(values["Node"]))


def no_victims(_: str) -> bytes:
    """Return the body of /preempt that names no victims."""
    return orjson.dumps({"NodeNameToMetaVictims": {}})


def bind_result(error: str) -> bytes:
    """Return the body of the response to /bind."""
    return orjson.dumps({"Error": error})


def _object(body: bytes) -> Json:
    if not body.strip():
        raise InvalidRequest("EOF")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"extender args are not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidRequest("extender args: expected a JSON object")
    return _insensitive(value)


def _insensitive(value: Json) -> Json:
    return {key.lower(): item for key, item in value.items()}
