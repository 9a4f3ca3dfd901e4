"""Paths of the API: `/api/v1/namespaces/NS/pods/NAME/status` -> `ApiTarget`."""

from __future__ import annotations

from kubelocal.apiserver.calls import ApiTarget
from kubelocal.apiserver.errors import no_such_path
from kubelocal.apiserver.schema.resources import BY_PATH


def parse(path: str) -> ApiTarget:
    """What the path names. Raises: ApiError (404) where nothing is served there."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, version, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3:
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        raise no_such_path()
    if bool(namespace) != resource.namespaced and (namespace or name):
        raise no_such_path()
    return ApiTarget(resource=resource, namespace=namespace, name=name, subresource=subresource)
