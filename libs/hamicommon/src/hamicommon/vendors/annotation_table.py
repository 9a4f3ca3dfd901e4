"""Collect the annotations of pods that the configured vendors and the services read or write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hamicommon.k8s.pod_annotations import (
    USER_ANNOTATIONS,
    WRITTEN_ANNOTATIONS,
    PodAnnotation,
    UserAnnotation,
    card_list,
)
from hamicommon.vendors.interface.vendor import AnnotationKeys
from hamicommon.vendors.registry import Vendors


def user_annotations(vendors: Vendors) -> tuple[UserAnnotation[Any], ...]:
    """Return the annotations that users may write, each once; cached."""
    known: tuple[UserAnnotation[Any], ...] | None = vendors.memory.get(user_annotations)
    if known is None:
        rows = [*USER_ANNOTATIONS, *(row for each in vendors for row in _chosen(each.keys))]
        known = tuple({row.name: row for row in rows}.values())
        vendors.memory[user_annotations] = known
    return known


def written_annotations(vendors: Vendors) -> tuple[PodAnnotation, ...]:
    """Return the annotations that only the services write."""
    rows = [
        *WRITTEN_ANNOTATIONS,
        *(row for each in vendors for row in _scheduler_annotations(each.keys)),
    ]
    return tuple({row.name: row for row in rows}.values())


def scheduler_owned(vendors: Vendors) -> frozenset[str]:
    """Return the annotations that the webhook drops from new pods; cached."""
    known: frozenset[str] | None = vendors.memory.get(scheduler_owned)
    if known is None:
        known = frozenset(row.name for row in written_annotations(vendors) if row.is_dropped)
        vendors.memory[scheduler_owned] = known
    return known


def _chosen(names: AnnotationKeys) -> Iterator[UserAnnotation[Any]]:
    for name, holds in (
        (names.use_types, "types of which a card's must contain one"),
        (names.avoid_types, "types of which a card's may contain none"),
        (names.use_uuids, "uuids that a card must have one of"),
        (names.avoid_uuids, "uuids that no card may have"),
    ):
        if name:
            yield card_list(name, holds)
    yield from names.choices


def _scheduler_annotations(names: AnnotationKeys) -> Iterator[PodAnnotation]:
    for name, holds in (
        (names.to_allocate, "slices that the node has to hand out"),
        (names.allocated, "slices of the pod"),
        *((name, "further input of the plugin") for name in names.extra),
    ):
        if name:
            yield PodAnnotation(name, "scheduler", "the vendor's device plugin", holds)
