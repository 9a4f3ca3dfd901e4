"""Find misspelt resources and annotations of a pod, and amounts in places where they do nothing.

HAMi silently gives the card whole, or none (HAMi#2862: `nvidia.com/gpumem` as an annotation). The
intended request is unknown, so the pod is admitted with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json
from hamicommon.vendors.annotation_table import scheduler_owned, user_annotations
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import Vendor
from hamicommon.vendors.registry import Vendors

MAX_NAMES = 256
"""Maximum number of a pod's resources, and of annotations, that are checked: 0.1 ms each."""
_LIKE_DOMAIN = 0.85
"""Minimum similarity of two domains (difflib's ratio): finds `nvdia.com`, not `intel.com`."""
_LIKE_RESOURCE = 0.65
"""Minimum similarity of resources' names: `gpumemory` for `gpumem`, not `mig-1g.5gb`."""
_LIKE_ANNOTATION = 0.8
"""Minimum similarity of annotations: `gpu-schedule-policy` for `gpu-scheduler-policy`."""
_SELECTING = ("use-", "nouse-", "no-use-")
"""Prefixes of annotations that choose cards, in every vendor's domain."""


def misspelt(pod: Json, vendors: Vendors) -> tuple[str, ...]:
    """Return a sentence for each mistake, in a fixed order; `pod` as admission has filled it in."""
    return (
        *misspelt_resources(pod, vendors),
        *_amounts_elsewhere(pod, vendors),
        *_annotations(pod, vendors),
    )


def misspelt_resources(pod: Json, vendors: Vendors) -> tuple[str, ...]:
    """Return a sentence for each mistake because of which the pod gets no card."""
    return (*_resources(pod, vendors), *_amounts_without_a_card(pod, vendors))


@dataclass(frozen=True, slots=True)
class _Names:
    """Resources and annotations of this installation, with which a pod's are compared."""

    resources: frozenset[str]
    resources_by_domain: Mapping[str, list[str]]
    read: Mapping[str, list[str]]
    """Annotations that users may write, by domain."""
    annotations: frozenset[str]
    """All our annotations and resources: a resource used as an annotation has its own message."""


def _names_of(vendors: Vendors) -> _Names:
    """Return the installation's names, computed once for all pods."""
    names: _Names | None = vendors.memory.get(_Names)
    if names is None:
        read = frozenset(row.name for row in user_annotations(vendors))
        resources = vendors.resource_names
        names = vendors.memory[_Names] = _Names(
            resources=frozenset(resources),
            resources_by_domain=_by_domain(resources),
            read=_by_domain(read),
            annotations=read | scheduler_owned(vendors) | {*resources},
        )
    return names


def meant_resource(name: str, vendors: Vendors) -> str:
    """Return the resource that `name` probably means; empty if it is one, or resembles none."""
    ours = _names_of(vendors)
    if name in ours.resources:
        return ""
    return _closest_name(name, ours.resources_by_domain, _LIKE_RESOURCE) or _closest_name(
        # `memory` is like `gpumem` once the card is named.
        name.replace("/", "/gpu", 1),
        ours.resources_by_domain,
        _LIKE_RESOURCE,
    )


def _resources(pod: Json, vendors: Vendors) -> Iterator[str]:
    for container, resource, amount in islice(_resources_of(pod), MAX_NAMES):
        if meant := meant_resource(resource, vendors):
            yield (
                f"container {container!r} asks for {resource} {amount}, which is no resource that "
                f"is served here: was {meant} meant?"
            )


def _resources_of(pod: Json) -> Iterator[tuple[str, str, object]]:
    """Yield container, resource and amount for each resource with a domain."""
    for _, container in containers_of(pod):
        resources = container.get("resources") or {}
        named = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        for resource, amount in named.items():
            if "/" in resource:
                yield str(container.get("name", "")), resource, amount


def _amounts_without_a_card(pod: Json, vendors: Vendors) -> Iterator[str]:
    annotations = keys.annotations_of(pod)
    for _, container in containers_of(pod):
        for vendor in vendors.concerned_by(container):
            names = vendor.resources
            if _amount_of(container, names.count):
                continue
            found = [
                f"{name} {_amount_of(container, name)}"
                for name in (names.memory, names.memory_percent, names.core)
                if _amount_of(container, name)
            ]
            if found and not _asks(vendor, container, annotations):
                yield (
                    f"container {container.get('name', '')!r} asks for {' and '.join(found)} but "
                    f"for no {names.count}: it is given no card"
                )


def _amount_of(container: Json, resource: str) -> str:
    """Return the amount as written; empty if there is none, or if it is 0."""
    written = str(amounts.find(container, resource) or "")
    return "" if written == "0" else written


def _asks(vendor: Vendor, container: Json, annotations: Mapping[str, str]) -> bool:
    try:
        return vendor.parse_request(container, annotations) is not None
    except InvalidRequest:
        return True


def _amounts_elsewhere(pod: Json, vendors: Vendors) -> Iterator[str]:
    known = _names_of(vendors).resources
    metadata = pod.get("metadata") or {}
    for what in ("annotation", "label"):
        for key, value in (metadata.get(f"{what}s") or {}).items():
            if key in known:
                yield (
                    f"{what} {key} '{clip(str(value))}' is without effect: amounts are asked for "
                    "under resources.limits of a container"
                )


def _annotations(pod: Json, vendors: Vendors) -> Iterator[str]:
    ours = _names_of(vendors)
    names, known = ours.read, ours.annotations
    for key in islice(keys.annotations_of(pod), MAX_NAMES):
        if key in known:
            continue
        domain, _, local = key.partition("/")
        meant = _closest_name(key, names, _LIKE_ANNOTATION)
        if meant or (domain in names and local.startswith(_SELECTING)):
            hint = f": was {meant} meant?" if meant else ""
            yield f"annotation {key} has no effect here{hint}"


def _by_domain(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names by their domain: the part before the slash."""
    found: dict[str, list[str]] = {}
    for domain, _, local in sorted(name.partition("/") for name in names):
        found.setdefault(domain, []).append(local)
    return found


def _closest_name(name: str, names: Mapping[str, list[str]], cutoff: float) -> str:
    """Return the most similar known name; empty if none is similar enough."""
    domain, _, local = name.partition("/")
    if domain not in names:
        domain = _near_domain(domain, tuple(names))
    by_lower = {known.lower(): known for known in names.get(domain, ())}
    found = get_close_matches(local.lower(), by_lower, n=1, cutoff=cutoff)
    return f"{domain}/{by_lower[found[0]]}" if found else ""


@lru_cache(maxsize=1024)
def _near_domain(domain: str, known: tuple[str, ...]) -> str:
    """Return the most similar known domain, or an empty string.

    The results are cached, because pods name the same few foreign domains.
    """
    by_name = next((each for each in known if each.partition(".")[0] == domain), "")
    return by_name or next(iter(get_close_matches(domain, known, n=1, cutoff=_LIKE_DOMAIN)), "")
