"""One call of the API after reading its path and query: what it is about, and on whose behalf."""

from __future__ import annotations

from dataclasses import dataclass, field

from kubelocal.apiserver.errors import ApiError, forbidden, not_found
from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.users import User


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTarget:
    """What a path names; empty strings for the parts that it does not have."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def collection(self) -> str:
        return self.resource.store_key

    def not_found(self) -> ApiError:
        return not_found(self.resource.plural, self.resource.group, self.name)

    def forbidden(self, why: str) -> ApiError:
        return forbidden(self.resource.plural, self.resource.group, self.name, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and how: `warnings` collects the answer's Warning headers."""

    user: User
    dry_run: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)
