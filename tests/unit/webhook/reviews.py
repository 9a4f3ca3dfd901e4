"""Reviews as the API server sends them."""

from __future__ import annotations

from typing import Any

from hamicommon.k8s.types import Json


def review(given: Any, version: str = "v1", **request: Any) -> Json:
    """Return alice's review of a new object, but for the parts of the request that are given."""
    whole = {
        "uid": "r1",
        "operation": "CREATE",
        "namespace": "ns",
        "userInfo": {"username": "alice"},
        "object": given,
    }
    return {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": whole | request,
    }
