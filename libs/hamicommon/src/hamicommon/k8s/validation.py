"""Check that JSON has the shape of a Node or a Pod, as the API server would have checked it.

Covers only the fields that admission and the simulator read. In reviews, cases and dumps from any
client a field may hold any value; after these checks the code can rely on types.
"""

from __future__ import annotations

from collections.abc import Iterator

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

_TEXTS = "an object of texts"
_OBJECT = "an object"
_LIST = "a list of objects"


class NoContainers(InvalidRequest):
    """Error: the pod has no container."""


def check_node(node: Json, where: str = "a Node") -> None:
    """Raises InvalidRequest naming the field, when the node has no name or is misshapen."""
    _metadata(node, where)
    name = (node.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where} without metadata.name: every node needs one")
    status = _object(node, "status", f"node {name}")
    for part in ("capacity", "allocatable"):
        _object(status, part, f"node {name}: status")


def check_placed(pod: Json, where: str = "a placed pod") -> None:
    """Raises InvalidRequest naming the field, if a field read of a placed pod is misshapen."""
    _metadata(pod, where)
    spec, status = _object(pod, "spec", where), _object(pod, "status", where)
    _text(status, "phase", f"{where}: status")
    _list(spec, "initContainers", f"{where}: spec")
    for each in _list(status, "initContainerStatuses", f"{where}: status"):
        state = _object(each, "state", f"{where}: status of an init container")
        _object(state, "terminated", f"{where}: status of an init container")


def check_pod(pod: Json, where: str = "the pod") -> None:
    """Raises InvalidRequest naming the field, when the pod is misshapen or has no container."""
    _metadata(pod, where)
    spec = _object(pod, "spec", where)
    for field in ("schedulerName", "nodeName", "runtimeClassName"):
        _text(spec, field, f"{where}: spec")
    if not spec.get("containers"):
        raise NoContainers(f"{where} has no containers: spec.containers wants at least one")
    for container, place in _containers(spec, where):
        for field in ("name", "restartPolicy"):
            _text(container, field, place)
        security = _object(container, "securityContext", place)
        _object(security, "capabilities", f"{place}: securityContext")
        resources = _object(container, "resources", place)
        for part in ("limits", "requests"):
            _object(resources, part, f"{place}: resources")
        for listed in ("env", "volumeMounts", "volumeDevices"):
            _list(container, listed, place)


def metadata_of(given: Json) -> Json:
    """Return the object's metadata; empty if it has none, or if it is not an object."""
    metadata = given.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _containers(spec: Json, where: str) -> Iterator[tuple[Json, str]]:
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for number, container in enumerate(_list(spec, key, f"{where}: spec")):
            yield container, f"{where}: spec.{key}[{number}]"


def _metadata(given: Json, where: str) -> None:
    metadata = _object(given, "metadata", where)
    for field in ("name", "namespace", "uid"):
        _text(metadata, field, f"{where}: metadata")
    for part in ("annotations", "labels"):
        for key, value in _object(metadata, part, f"{where}: metadata").items():
            if not isinstance(value, str):
                raise InvalidRequest(
                    f"{where}: metadata.{part}[{key!r}] is {value!r:.60}: expected {_TEXTS}"
                )


def _object(given: Json, field: str, where: str) -> Json:
    value = given.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: {field} is {value!r:.60}: expected {_OBJECT}")
    return value


def _text(given: Json, field: str, where: str) -> None:
    value = given.get(field)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{where}: {field} is {value!r:.60}: expected a text")


def _list(given: Json, field: str, where: str) -> list[Json]:
    value = given.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidRequest(f"{where}: {field} is {value!r:.60}: expected {_LIST}")
    return value
