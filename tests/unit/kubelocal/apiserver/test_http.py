import pytest
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.http import parse_path


@pytest.mark.parametrize(
    ("path", "plural", "namespace", "name", "subresource"),
    [
        ("/api/v1/pods", "pods", "", "", ""),
        ("/api/v1/namespaces", "namespaces", "", "", ""),
        ("/api/v1/namespaces/d", "namespaces", "", "d", ""),
        ("/api/v1/namespaces/d/status", "namespaces", "", "d", "status"),
        ("/api/v1/namespaces/d/pods/a/binding", "pods", "d", "a", "binding"),
        ("/apis/apps/v1/namespaces/d/deployments/a", "deployments", "d", "a", ""),
        ("/api/v1/nodes/n/status", "nodes", "", "n", "status"),
    ],
)
def test_paths_name_targets(
    path: str, plural: str, namespace: str, name: str, subresource: str
) -> None:
    target = parse_path(path)
    assert target.resource.plural == plural
    assert (target.namespace, target.name, target.subresource) == (namespace, name, subresource)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api/v2/pods",
        "/api/v1/foos",
        "/api/v1/pods/a",
        "/api/v1/namespaces/d/nodes",
        "/api/v1/namespaces/d/nodes/n",
        "/api/v1/namespaces/d/pods/a/b/c",
        "/api/v1/namespaces/d/pods/a/nope",
        "/apis/nope/v1/pods",
    ],
)
def test_other_paths_are_not_found(path: str) -> None:
    with pytest.raises(ApiError, match="could not find the requested resource"):
        parse_path(path)
