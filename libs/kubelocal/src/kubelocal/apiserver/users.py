"""Who calls: bearer tokens from a file of `token,user,uid,"group1,group2"` lines.

The format is that of kube-apiserver's --token-auth-file. A known token may do everything here, an
unknown one nothing; roles count only for who asks about a user (`reviews`).
"""

from __future__ import annotations

import csv
import hmac
from dataclasses import dataclass
from pathlib import Path

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import unauthorized


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The caller, as admission webhooks see it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()

    def info(self) -> Json:
        """The `userInfo` of an AdmissionReview."""
        info: Json = {"username": self.name, "groups": [*self.groups, "system:authenticated"]}
        return info | ({"uid": self.uid} if self.uid else {})


# What the server itself does (garbage collection, namespaces) is done under this name.
CONTROLLER = User(name="system:kube-controller-manager", groups=("system:masters",))


def read_tokens(path: Path) -> dict[str, User]:
    """{token: user}. Raises: InvalidRequest where a line has fewer than three columns."""
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
    """The user behind an Authorization header. Raises: ApiError (401)."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        for token, user in tokens.items():
            if hmac.compare_digest(token.encode(), given.strip().encode()):
                return user
    raise unauthorized()
