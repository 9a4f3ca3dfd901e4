"""Simulate many cases for `hamictl simulate --jsonl`: one JSON case and one answer per line.

The answers have the form of those recorded from HAMi's real scheduler, so that both can be laid
side by side: times and what repeats the node's name are left out, and device lists are written as
HAMi writes them, TRAP-1 included (see `as_hami_writes`). What our own scheduler writes on pods has
an entry for every container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.simulation.cluster import read_cluster
from hamicommon.simulation.verdict import judge
from hamicommon.vendors.pod_request import DEFAULT_POLICY
from hamicommon.vendors.registry import Vendors

_NOT_COMPARED = frozenset(
    {
        "NEURON_ALLOC_TIME",
        "assigned-containers",
        "aws.amazon.com/predicate-node",
        "enflame.com/gcu-assigned-time",
        "metax-tech.com/predicate-time",
        "mthreads.com/predicate-node",
        "mthreads.com/predicate-time",
        "predicate-time",
    }
)
"""Annotations that recorded answers leave out: times, and what follows from others."""

_WANTED = 'expected a case: {"name": ..., "in": {"nodes": [...], "pods": [...], "pod": {...}}}'

_ANY_TIME = datetime.fromtimestamp(0, UTC)
"""Moment of all answers, none of which contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case: a cluster, and a pod to be placed on it."""

    name: str
    nodes: list[Json]
    pods: list[Json]
    pod: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """Answer cases, each independently."""

    vendors: Vendors
    defaults: Policy = field(default=DEFAULT_POLICY)

    def answer_line(self, line: str | bytes, number: int) -> Json:
        """Answer one line of the file; the answer to an unreadable line has `error`."""
        name = ""
        try:
            value = _parse_line(line)
            name = str(value.get("name", ""))
            return self.answer(_case(name, value.get("in")))
        except InvalidRequest as exc:
            error = str(exc)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
            # Annotations may hold any JSON where a device plugin would have written a known form.
            error = f"an object is malformed ({type(exc).__name__}: {exc})"
        return {"name": name, "nodes": {}, "chosen": None, "error": f"line {number}: {error}"}

    def answer(self, case: Case) -> Json:
        """Answer one case.

        Raises: InvalidRequest when an object has not the shape of a Node or Pod.
        """
        cluster = read_cluster(case.nodes, case.pods, self.vendors, asking=[case.pod])
        verdict = judge(case.pod, cluster, self.vendors, now=_ANY_TIME, defaults=self.defaults)

        def write_as_hami(node: NodeName, annotations: Mapping[str, str]) -> Mapping[str, str]:
            types = {state.usage.device.type for state in cluster.view.cards(node)}
            return as_hami_writes(annotations, types, self.vendors)

        return {"name": case.name} | verdict.as_json(write_as_hami)


def as_hami_writes(
    annotations: Mapping[str, str], card_types: set[str], vendors: Vendors
) -> dict[str, str]:
    """Write the annotations of a placed pod in HAMi's form (protocol 4.6 d, TRAP-1).

    HAMi keeps the empty entry of a container without a card only where the vendor's name is also
    the type of a card of the node.
    """
    written = {key: text for key, text in annotations.items() if key not in _NOT_COMPARED}
    for vendor in vendors:
        if vendor.name in card_types:
            continue
        for key in (vendor.keys.to_allocate, vendor.keys.allocated):
            if key in written:
                pieces = (piece for piece in written[key].split(";") if piece)
                written[key] = "".join(f"{piece};" for piece in pieces)
    return written


def _parse_line(line: str | bytes) -> Json:
    try:
        value: Any = orjson.loads(line)
    except ValueError as exc:
        raise InvalidRequest(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidRequest(_WANTED)
    return value


def _case(name: str, given: object) -> Case:
    if not isinstance(given, dict):
        raise InvalidRequest(_WANTED)
    return Case(
        name=name,
        nodes=_objects(given, "nodes"),
        pods=_objects(given, "pods"),
        pod=_object(given.get("pod"), "in.pod"),
    )


def _objects(given: Mapping[str, Any], key: str) -> list[Json]:
    items = given.get(key) or []
    if not isinstance(items, list):
        raise InvalidRequest(f"in.{key} is {items!r:.60}: expected a list of objects")
    return [_object(item, f"in.{key}[{number}]") for number, item in enumerate(items)]


def _object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {value!r:.60}: expected a Kubernetes object")
    return value
