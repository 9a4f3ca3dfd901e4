"""What most vendors do alike: annotations of a placed pod, and selection by annotation keys."""

from __future__ import annotations

from collections.abc import Mapping

from hamicommon.domain.requests import Selection
from hamicommon.k8s import annotations as keys
from hamicommon.vendors.base import AnnotationKeys, Placed


def device_annotations(placed: Placed, word: str, written: AnnotationKeys) -> dict[str, str]:
    """The slices under the vendor's to-allocate and allocated keys, where it has them.

    Empty when no container has a card of the vendor.
    """
    if not any(share.vendor == word for c in placed.containers for share in c.shares):
        return {}
    devices = keys.encode_pod_devices(placed.containers, word)
    return {key: devices for key in (written.to_allocate, written.allocated) if key}


def selection(
    annotations: Mapping[str, str],
    *,
    use_types: str = "",
    avoid_types: str = "",
    use_uuids: str = "",
    avoid_uuids: str = "",
) -> Selection:
    """Reads comma lists under these annotation keys; an empty key is one the vendor has not."""

    def entries(key: str) -> tuple[str, ...]:
        return keys.split_list(annotations.get(key, "")) if key else ()

    return Selection(
        use_types=entries(use_types),
        avoid_types=entries(avoid_types),
        use_uuids=entries(use_uuids),
        avoid_uuids=entries(avoid_uuids),
    )
