"""Parse payloads from the bus; an error is one sentence about the mistake.

Only `read_of_node` reads payloads from a node: it compares the node that the payload names with the
subject that it came on, because the server lets a node use its own subjects only. A payload of an
unknown version is never interpreted: its consumer sends it to the dead letters, where it waits for
a release that can read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from hamicommon.errors import InvalidRequest
from hamicommon.events import NodePayload

_MAX_MISTAKES = 3
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
N = TypeVar("N", bound=NodePayload)


def read(model: type[M], data: bytes, what: str) -> M:
    """Parse the payload as `model`; `what` names it in the error. Raises: InvalidRequest."""
    return _not_of_a_node(_read(model.model_validate_json, data, what))


def read_any(kinds: TypeAdapter[T], data: bytes, what: str) -> T:
    """Parse the payload as one of several models; `what` names it in the error.

    Raises: InvalidRequest.
    """
    return _not_of_a_node(_read(kinds.validate_json, data, what))


def read_of_node(kind: type[N] | TypeAdapter[N], subject: str, data: bytes, what: str) -> N:
    """Parse a node's payload and check that `subject` belongs to the node that it names.

    Raises: InvalidRequest, also when the payload names another node than its subject.
    """
    validate = kind.validate_json if isinstance(kind, TypeAdapter) else kind.model_validate_json
    payload = _read(validate, data, what)
    if payload.subject_of(payload.node) != subject:
        raise InvalidRequest(f"{what} of node {payload.node} came on {subject}")
    return payload


def _not_of_a_node(payload: T) -> T:
    if isinstance(payload, NodePayload):
        raise TypeError(f"{type(payload).__name__} names its node: read it by read_of_node")
    return payload


def _read(validate: Callable[[bytes], T], data: bytes, what: str) -> T:
    try:
        return validate(data)
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            if error["loc"][-1:] == ("version",) and error["type"] == "literal_error":
                raise InvalidRequest(
                    f"{what}: {'.'.join(map(str, error['loc']))} is {error['input']!r}, and this "
                    f"release reads {error['ctx']['expected']}: its sender runs another "
                    "release; update this one, then send the message again"
                ) from exc
        raise InvalidRequest(f"{what} is malformed: {_mistakes(exc)}") from exc


def _mistakes(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    mistakes = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in found]
    more = f" and {len(mistakes) - _MAX_MISTAKES} more" if len(mistakes) > _MAX_MISTAKES else ""
    return "; ".join(mistakes[:_MAX_MISTAKES]) + more
