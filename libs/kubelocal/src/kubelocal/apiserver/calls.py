"""One call of the API: the object it names, and its caller.

Callers are known by bearer tokens from a file of `token,user,uid,"group1,group2"` lines, the format
of kube-apiserver's --token-auth-file. A known token may do everything, an unknown one nothing.
"""

from __future__ import annotations

import csv
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import ApiError, forbidden, not_found, unauthorized
from kubelocal.apiserver.schema.resources import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """User who calls, as webhooks see them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()

    def info(self) -> Json:
        """Return the `userInfo` of an AdmissionReview."""
        info: Json = {"username": self.name, "groups": [*self.groups, "system:authenticated"]}
        return info | ({"uid": self.uid} if self.uid else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTarget:
    """Object that a path names; empty strings for missing parts."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def collection(self) -> str:
        """Key of the collection in the store."""
        return self.resource.store_key

    def not_found(self) -> ApiError:
        """Return the error for an object that does not exist."""
        return not_found(self.resource.plural, self.resource.group, self.name)

    def forbidden(self, why: str) -> ApiError:
        """Return the error for a forbidden call."""
        return forbidden(self.resource.plural, self.resource.group, self.name, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """User and options of a call; `warnings` collects the answer's Warning headers."""

    user: User
    dry_run: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)


# What the server itself does (garbage collection, namespaces) is done under this name.
CONTROLLER = User(name="system:kube-controller-manager", groups=("system:masters",))


def read_tokens(path: Path) -> dict[str, User]:
    """Read a token file. Raises: InvalidRequest for a line with fewer than three columns."""
    users: dict[str, User] = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file, skipinitialspace=True), 1):
            if not row or row[0].startswith("#"):
                continue
            if len(row) < 3:
                raise InvalidRequest(
                    f"{path}, line {number}: {len(row)} columns; expected token,user,uid"
                )
            groups = tuple(filter(None, row[3].split(","))) if len(row) > 3 else ()
            users[row[0]] = User(name=row[1], uid=row[2], groups=groups)
    if not users:
        raise InvalidRequest(f"{path} holds no token; expected lines of token,user,uid")
    return users


def authenticate(authorization: str, tokens: dict[str, User]) -> User:
    """Return the user of an Authorization header. Raises: ApiError (401)."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        for token, user in tokens.items():
            if hmac.compare_digest(token.encode(), given.strip().encode()):
                return user
    raise unauthorized()
