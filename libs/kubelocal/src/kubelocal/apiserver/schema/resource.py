"""A resource of the API: one row of the table in `resources.py`, and rows that come in families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resource:
    """One row of the table.

    `schema` names the definition in `schema`; `fields` are the field-selector labels beyond the
    metadata ones, with the value of an absent field; `storage` is the plural and group that it is
    stored under (events have two faces and one store); `generation`: a change of spec counts it up.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    singular: str = ""
    kind: str
    schema: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    storage: str = ""
    generation: bool = False
    unconditional_update: bool = True
    create_on_update: bool = False
    returns_deleted: bool = False
    stored: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def store_key(self) -> str:
        """The name of the collection in the store."""
        return self.storage or (f"{self.group}/{self.plural}" if self.group else self.plural)

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def field_labels(self) -> frozenset[str]:
        """Every label that a field selector may name."""
        names = {"metadata.name", *self.fields}
        if self.namespaced:
            names.add("metadata.namespace")
        return frozenset(names)


def workload(kind: str, schema: str, short: str) -> Resource:
    """A controller of apps/v1."""
    return Resource(
        group="apps",
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=schema,
        short_names=(short,),
        categories=("all",),
        subresources=("status",),
        generation=True,
    )


def rbac(kind: str, namespaced: bool) -> Resource:
    """A kind of RBAC."""
    return Resource(
        group="rbac.authorization.k8s.io",
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=f"V1{kind}",
        namespaced=namespaced,
        create_on_update=True,
    )


def webhooks(kind: str) -> Resource:
    """A configuration of admission webhooks."""
    return Resource(
        group="admissionregistration.k8s.io",
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=f"V1{kind}",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
    )


def review(group: str, kind: str) -> Resource:
    """A question that is answered and never stored."""
    return Resource(
        group=group,
        plural=kind.lower() + "s",
        singular=kind.lower(),
        kind=kind,
        schema=f"V1{kind}",
        namespaced=False,
        stored=False,
    )
