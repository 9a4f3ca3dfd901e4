"""The reviews that API servers send, read without all that no verdict depends on.

In: the body of `POST /webhook`. Out: the `AdmissionReview` that `admission.read_review` makes of
it. Decoding goes by types and touches no field that is not named here; of the pod the parts that
`looking.relevant` leaves stay bytes, which are the key of what is remembered, and are read where
nothing is: a sixth of the CPU time of a review less. What has any other shape is read whole by
`admission.read_review`, which says what is wrong with it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import orjson
from hamicommon.admission.cache import digest
from hamicommon.k8s.annotations import TRACEPARENT
from hamicommon.k8s.types import Json
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from hami_webhook.review import (
    AdmissionReview,
    ApiVersion,
    MalformedReview,
    name_of,
    read_review,
)

_ABSENT = Raw(b"")
_Named = Annotated[str, Meta(min_length=1)]
_SEPARATOR, _NEXT_LIST = b"\xff", b"|"
"""Neither is part of any JSON value: no UTF-8, and no JSON."""


class _Container(Struct, gc=False, rename="camel"):
    name: Raw = _ABSENT
    restart_policy: Raw = _ABSENT
    security_context: Raw = _ABSENT
    resources: Raw = _ABSENT
    env: Raw = _ABSENT


class _Spec(Struct, gc=False, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | UnsetType = UNSET
    scheduler_name: Raw = _ABSENT
    node_name: Raw = _ABSENT
    runtime_class_name: Raw = _ABSENT


class _Metadata(Struct, gc=False, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    uid: str | None = None
    namespace: Raw = _ABSENT
    annotations: Raw = _ABSENT
    labels: Raw = _ABSENT


class _Pod(Struct, gc=False, rename="camel"):
    metadata: _Metadata
    spec: _Spec
    kind: Literal["Pod"] = "Pod"

    def key(self) -> bytes:
        """A digest of its relevant parts, in the order of the fields above."""
        metadata, spec = self.metadata, self.spec
        parts: list[Any] = [
            metadata.namespace,
            metadata.annotations,
            metadata.labels,
            spec.scheduler_name,
            spec.node_name,
            spec.runtime_class_name,
        ]
        for containers in (spec.containers, spec.init_containers):
            parts.append(_NEXT_LIST)
            if containers is not UNSET:
                parts.append(_NEXT_LIST)
                for c in containers:
                    parts += (c.name, c.restart_policy, c.security_context, c.resources, c.env)
        return digest(_SEPARATOR.join(parts))

    def read(self) -> Json:
        """What `looking.relevant` leaves of the pod. Raises: MalformedReview (without the uid)."""
        spec = self.spec
        try:
            seen = _decoded(spec)
            if spec.init_containers is not UNSET:
                seen["initContainers"] = [_decoded(each) for each in spec.init_containers]
            seen["containers"] = [_decoded(each) for each in spec.containers]
            metadata = _decoded(self.metadata)
        except orjson.JSONDecodeError as exc:
            raise MalformedReview(f"a part of request.object is no JSON: {exc}") from exc
        return {
            "metadata": {key: value for key, value in metadata.items() if value is not None},
            "spec": seen,
        }


class _User(Struct, gc=False, rename="camel"):
    username: str | None = None


class _Request(Struct, gc=False, rename="camel"):
    uid: _Named
    operation: _Named
    object: _Pod
    namespace: str | None = None
    name: str | None = None
    user_info: _User | None = None
    dry_run: bool | None = None


class _Review(Struct, gc=False, rename="camel"):
    api_version: ApiVersion
    kind: Literal["AdmissionReview"]
    request: _Request


_reviews = msgspec.json.Decoder(_Review)


def read_quickly(body: bytes) -> AdmissionReview:
    """Decodes a review of a pod's creation.

    Raises: MalformedReview with one sentence: what was found and what would be right.
    """
    if _SEPARATOR in body:
        return read_review(body)
    try:
        review = _reviews.decode(body)
        annotations = review.request.object.metadata.annotations
        written = orjson.loads(memoryview(annotations)) if annotations else None
    except (msgspec.MsgspecError, orjson.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return read_review(body)
    if written is not None and not isinstance(written, dict):
        return read_review(body)
    request = review.request
    metadata = request.object.metadata
    return AdmissionReview(
        api_version=review.api_version,
        uid=request.uid,
        operation=request.operation,
        namespace=request.namespace or "",
        pod_name=name_of(request.name, metadata.name, prefix=metadata.generate_name),
        username=(request.user_info.username if request.user_info else "") or "",
        dry_run=bool(request.dry_run),
        stamp=str(written.get(TRACEPARENT, "")) if written else "",
        pod=request.object,
    )


def _decoded(part: Struct) -> Json:
    """What was left as bytes, by the API's names."""
    values = (getattr(part, field) for field in part.__struct_fields__)
    return {
        name: orjson.loads(memoryview(value))
        for name, value in zip(part.__struct_encode_fields__, values, strict=True)
        if isinstance(value, Raw) and value
    }
