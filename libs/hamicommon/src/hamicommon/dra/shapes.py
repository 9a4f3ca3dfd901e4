"""Write a pod's limits as a ResourceClaimTemplate, by way of a text that describes them. Pure.

Pods of one shape share a template, whose name is a hash of the shape, so a second one is never
made. The webhook finds the shape (`conversion.py`) and writes it
on the pod; the scheduler makes the template and takes it back when no pod has the shape any more.
The annotation is only read from pods, which tenants write: nothing is believed of it, it is parsed
into the numbers and texts below.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hamicommon.clipping import clip
from hamicommon.dra.devices import CORES, DRIVER, MEMORY
from hamicommon.dra.requests import DEVICE_CLASS
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import CLAIM_SHAPE
from hamicommon.k8s.types import Json

MAX_CARDS = 32
"""Maximum results of one claim (resource.k8s.io/v1)."""
MAX_ALTERNATIVES = 8
"""Maximum subrequests of one request (resource.k8s.io/v1)."""
TEMPLATE_LABELS = {"app.kubernetes.io/managed-by": "hami-scheduler"}
"""Labels of templates that we made; others are never deleted."""
MAX_SELECTOR = 10 * 1024
"""Maximum bytes of a CEL expression (resource.k8s.io/v1)."""
_MAX_MIB = 2**31 - 1
_ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def templates_path(namespace: str = "") -> str:
    """Return the API server's path of a namespace's templates, or of all."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/resource.k8s.io/v1{inside}/resourceclaimtemplates"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceShape:
    """Slices of the same size on `count` different cards."""

    count: int
    memory_mib: int
    """Memory per card in MiB; 0: `memory_percent` applies."""
    memory_percent: int
    """Percent of each card's memory, 1..100; not used if `memory_mib` is set."""
    core_percent: int
    """Percent of each card's cores; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimShape:
    """All slices of a pod, and the cards from which they may come."""

    slices: tuple[SliceShape, ...]
    use_types: tuple[str, ...] = ()
    """Parts of the names of allowed products, in any case; empty: any."""
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the value of the annotation, equal for equal shapes."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def template_name(self) -> str:
        """Return the name of the ResourceClaimTemplate, the same in every namespace."""
        return f"hami-{hashlib.sha256(self.text.encode()).hexdigest()[:20]}"


def request_name(number: int) -> str:
    """Return the name of the request for the slices of this number."""
    return f"gpu-{number}"


def shape_from(text: str) -> ClaimShape:
    """Parse a text that `text` wrote. Raises: InvalidRequest."""
    try:
        found = json.loads(text)
        shape = ClaimShape(
            slices=tuple(_slice(each) for each in found.pop("slices")),
            **{name: _texts(entries) for name, entries in found.items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise InvalidRequest(
            f"annotation {CLAIM_SHAPE} is '{clip(text)}': expected what the webhook writes"
        ) from exc
    if not 0 < sum(each.count for each in shape.slices) <= MAX_CARDS:
        raise InvalidRequest(f"annotation {CLAIM_SHAPE} asks for no card or more than {MAX_CARDS}")
    if shape.text != text:
        raise InvalidRequest(f"annotation {CLAIM_SHAPE} is not as the webhook writes it")
    return shape


def _slice(found: dict[str, Any]) -> SliceShape:
    each = SliceShape(**found)
    bounds = {
        "count": (1, MAX_CARDS),
        "memory_mib": (0, _MAX_MIB),
        "memory_percent": (0 if each.memory_mib else 1, 100),
        "core_percent": (0, 100),
    }
    for name, (least, most) in bounds.items():
        amount = getattr(each, name)
        if type(amount) is not int or not least <= amount <= most:
            raise ValueError(name)
    return each


def _texts(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise TypeError("expected a list of texts")
    return tuple(found)


def selector_of(shape: ClaimShape) -> str:
    """Return CEL that selects the allowed cards; empty: all cards."""
    uuid, product = f"{_ATTRIBUTES}.uuid", f"{_ATTRIBUTES}.productName.upperAscii()"
    terms = []
    if shape.use_types:
        terms.append(f"({_contains_any(product, shape.use_types)})")
    if any(shape.avoid_types):
        terms.append(f"!({_contains_any(product, shape.avoid_types)})")
    if shape.use_uuids:
        terms.append(f"{uuid} in {_cel_list(shape.use_uuids)}")
    if shape.avoid_uuids:
        terms.append(f"!({uuid} in {_cel_list(shape.avoid_uuids)})")
    return " && ".join(terms)


def _contains_any(text: str, entries: Sequence[str]) -> str:
    """Return CEL for "the text contains one of these"; empty entries match no card."""
    return (
        " || ".join(f"{text}.contains({_cel_string(e.upper())})" for e in entries if e) or "false"
    )


def _cel_list(entries: Sequence[str]) -> str:
    return f"[{', '.join(map(_cel_string, entries))}]"


def _cel_string(text: str) -> str:
    """Return a CEL literal, in JSON's form, whose escapes CEL knows."""
    return json.dumps(text, ensure_ascii=False)


def template_of(shape: ClaimShape, namespace: str, card_sizes_mib: Iterable[int]) -> Json:
    """Return the ResourceClaimTemplate as JSON.

    `card_sizes_mib`: of the cluster's cards, for parts of them: a claim states an amount, so there
    is one alternative for each size, the smallest first.
    """
    sizes_mib = sorted(set(card_sizes_mib))[-MAX_ALTERNATIVES:]
    requests = [
        {"name": request_name(number), **_request(each, selector_of(shape), sizes_mib)}
        for number, each in enumerate(shape.slices)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": shape.template_name,
            "namespace": namespace,
            "labels": dict(TEMPLATE_LABELS),
        },
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def _request(each: SliceShape, selector: str, sizes_mib: Sequence[int]) -> Json:
    if each.memory_mib:
        return {"exactly": _exact_request(each, each.memory_mib, selector)}
    alternatives = []
    for size_mib in sizes_mib:
        of_size = f"{_ATTRIBUTES}.memoryMib == {size_mib}"
        chosen = f"{of_size} && {selector}" if selector else of_size
        part_mib = max(size_mib * each.memory_percent // 100, 1)
        alternatives.append({"name": f"mib-{size_mib}", **_exact_request(each, part_mib, chosen)})
    return {"firstAvailable": alternatives}


def _exact_request(each: SliceShape, memory_mib: int, selector: str) -> Json:
    capacity = {MEMORY: f"{memory_mib}Mi"}
    if each.core_percent:
        capacity[CORES] = str(each.core_percent)
    wanted: Json = {
        "deviceClassName": DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": each.count,
        "capacity": {"requests": capacity},
    }
    if selector:
        wanted["selectors"] = [{"cel": {"expression": selector}}]
    return wanted


def parts_of_cards(shape: ClaimShape) -> bool:
    """Return whether the template depends on the sizes of the cluster's cards."""
    return any(not each.memory_mib for each in shape.slices)
