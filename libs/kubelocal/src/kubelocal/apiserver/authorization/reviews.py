"""TokenReview and SubjectAccessReview: whose token is this, and may they?

Both are created and answered, and never stored. Tokens of the file know the API server's own
audience alone, as with the real server's --token-auth-file.
"""

from __future__ import annotations

from collections.abc import Iterable

from hamicommon.k8s.types import Json

from kubelocal.apiserver import users
from kubelocal.apiserver.authorization import rbac
from kubelocal.apiserver.authorization.rbac import AccessRequest, Roles
from kubelocal.apiserver.errors import ApiError, Cause, bad_request, invalid
from kubelocal.apiserver.schema.resources import BY_KIND, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from kubelocal.apiserver.storage.store import ObjectStore
from kubelocal.apiserver.users import User

AUDIENCE = "https://kubernetes.default.svc"
REVIEWS = (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS)
_RBAC = "rbac.authorization.k8s.io/v1"


def review_token(tokens: dict[str, User], review: Json) -> Json:
    """The status of a TokenReview. Raises: ApiError 400 when it holds no token."""
    spec = review.get("spec") or {}
    if not spec.get("token"):
        raise bad_request("token is required for TokenReview in authentication")
    audiences = spec.get("audiences") or [AUDIENCE]
    if AUDIENCE not in audiences:
        return {"user": {}}
    try:
        user = users.authenticate(f"Bearer {spec['token']}", tokens)
    except ApiError:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": user.info(), "audiences": [AUDIENCE]}


def review_access(store: ObjectStore, review: Json) -> Json:
    """The status of a SubjectAccessReview. Raises: ApiError 422 when it is incomplete."""
    spec = review.get("spec") or {}
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    causes = []
    if resource is not None and other is not None:
        causes.append(
            Cause(
                reason="FieldValueInvalid",
                field="spec.nonResourceAttributes",
                message=_TWO_ATTRIBUTES,
            )
        )
    if resource is None and other is None:
        causes.append(
            Cause(
                reason="FieldValueInvalid",
                field="spec.resourceAttributes",
                message=_NO_ATTRIBUTES,
            )
        )
    if not spec.get("user") and not spec.get("groups"):
        causes.append(Cause(reason="FieldValueInvalid", field="spec.user", message=_NOBODY))
    if causes:
        review_kind = SUBJECT_ACCESS_REVIEWS
        raise invalid(review_kind.kind, review_kind.group, "", causes)
    asked = AccessRequest(
        user=spec.get("user") or "",
        groups=tuple(spec.get("groups") or ()),
        **{name: value for name, value in (resource or other or {}).items() if name in _ASKED},
    )
    reason = rbac.allowed_by(asked, _roles(store, asked.namespace))
    if reason is None:
        return {"allowed": False}
    return {"allowed": True, **({"reason": reason} if reason else {})}


_ASKED = {"verb", "path", "group", "resource", "subresource", "name", "namespace"}
_TWO_ATTRIBUTES = "cannot be specified in combination with resourceAttributes"
_NO_ATTRIBUTES = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
_NOBODY = "at least one of user or group must be specified"


def _roles(store: ObjectStore, namespace: str) -> Roles:
    def rules_of(kind: str, home: str, name: str) -> Iterable[Json] | None:
        where = home if kind == "Role" else ""
        found = store.get(BY_KIND[_RBAC, kind].store_key, where, name)
        return None if found is None else found.load().get("rules") or ()

    return Roles(
        cluster_bindings=_bodies(store, "ClusterRoleBinding", ""),
        bindings=_bodies(store, "RoleBinding", namespace),
        rules_of=rules_of,
    )


def _bodies(store: ObjectStore, kind: str, namespace: str) -> list[Json]:
    found = store.items(BY_KIND[_RBAC, kind].store_key)
    return [each.load() for each in found if each.namespace == namespace]
