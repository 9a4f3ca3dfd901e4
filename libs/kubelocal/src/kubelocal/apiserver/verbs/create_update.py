"""Create and update objects, with checks in the order of the real server.

Read the body -> defaults -> admission -> validation -> one transaction. If an update calls no
webhook, all steps run inside the transaction, so it cannot lose a race; otherwise the transaction
checks that the object is still the admitted one.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.admission.chain import AdmissionChain
from kubelocal.apiserver.admission.review import Write
from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.errors import (
    ApiError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    stale,
)
from kubelocal.apiserver.kinds import defaults
from kubelocal.apiserver.kinds import patch as patching
from kubelocal.apiserver.storage.objects import StoredObject
from kubelocal.apiserver.storage.store import ObjectStore, Transaction
from kubelocal.apiserver.validation import invalid_value, validate_create, validate_update
from kubelocal.apiserver.wire import bodies

Change = Callable[[Json], Json]
# Letters of generated names: without vowels, so they spell nothing (apimachinery `util/rand`).
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_ADMISSION_TRIES = 5


class _DryRun(Exception):
    def __init__(self, stored: StoredObject) -> None:
        self.stored = stored


class _ObjectMoved(Exception):
    pass


def now_text() -> str:
    """Return the present second in the API's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def commit(
    store: ObjectStore, caller: Caller, work: Callable[[Transaction], StoredObject]
) -> StoredObject:
    """Run `work` in a transaction; for a dry run, discard the changes."""
    if not caller.dry_run:
        return await store.transact(work)

    def and_forget(transaction: Transaction) -> StoredObject:
        raise _DryRun(work(transaction))

    try:
        return await store.transact(and_forget)
    except _DryRun as done:
        return done.stored


class CreateUpdate:
    """Create and change objects in a store, through an admission chain."""

    def __init__(self, store: ObjectStore, admission: AdmissionChain) -> None:
        self._store = store
        self._admission = admission

    async def create(self, target: ApiTarget, caller: Caller, sent: Json) -> StoredObject:
        """Store a new object. Raises: ApiError."""
        body = bodies.read_object(target, caller, sent)
        meta = body["metadata"]
        if meta.pop("resourceVersion", ""):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        if not meta.get("name") and meta.get("generateName"):
            suffix = "".join(random.choices(_ALPHABET, k=5))
            meta["name"] = meta["generateName"] + suffix
        target = ApiTarget(
            resource=target.resource, namespace=target.namespace, name=meta.get("name", "")
        )
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now_text()
        meta.pop("generation", None)
        meta.pop("selfLink", None)
        defaults.apply_defaults(target.resource, body)
        defaults.prepare_create(target.resource, body)
        self._admission.check_namespace(target)
        body = await self._admit_new(target, caller, body)
        if causes := validate_create(target.resource, body):
            raise invalid(target.resource.kind, target.resource.group, target.name, causes)
        return await commit(self._store, caller, lambda tx: self._insert(tx, target, body))

    async def replace(self, target: ApiTarget, caller: Caller, sent: Json) -> StoredObject:
        """Replace an existing object (PUT). Raises: ApiError."""
        body = bodies.read_object(target, caller, sent)
        _check_name(target, body["metadata"])
        frozen = orjson.dumps(body)

        def change(_: Json) -> Json:
            """Return a new copy for each run; there may be two."""
            return cast(Json, orjson.loads(frozen))

        return await self.update(target, caller, change, replaces=True)

    async def patch(
        self, target: ApiTarget, caller: Caller, media: str, patch: Any
    ) -> StoredObject:
        """Patch an object with one of the three types. Raises: ApiError."""
        resource = target.resource

        def change(old: Json) -> Json:
            shown = bodies.for_webhook(resource, old)
            patched = patching.apply_patch(media, shown, patch)
            bodies.check_kind(resource, patched)
            return bodies.clean(resource, caller, patched, is_patched=True)

        return await self.update(target, caller, change, replaces=False)

    async def update(
        self,
        target: ApiTarget,
        caller: Caller,
        change: Change,
        *,
        replaces: bool,
    ) -> StoredObject:
        """Write `change(current)`; `replaces`: the client sent a whole object (PUT).

        `change` gets the current stored body and may run more than once. Raises: ApiError.
        """
        if not self._admission.hooks_for(target, "UPDATE"):

            def work(transaction: Transaction) -> StoredObject:
                old = self._current(transaction, target)
                new = change(old.load())
                self._prepare(target, old, new, replaces)
                return self._revise(transaction, target, old, new)

            return await commit(self._store, caller, work)
        for _ in range(_ADMISSION_TRIES):
            try:
                return await self._update_admitted(target, caller, change, replaces)
            except _ObjectMoved:
                continue
        raise stale(target.resource.plural, target.resource.group, target.name)

    async def _update_admitted(
        self, target: ApiTarget, caller: Caller, change: Change, replaces: bool
    ) -> StoredObject:
        old = self._store.get(target.collection, target.namespace, target.name)
        if old is None:
            raise target.not_found()
        new = change(old.load())
        self._prepare(target, old, new, replaces)
        admitted = await self._admit(target, caller, "UPDATE", new, old.load())

        def work(transaction: Transaction) -> StoredObject:
            current = self._current(transaction, target)
            if current.version != old.version:
                raise _ObjectMoved
            return self._revise(transaction, target, current, admitted)

        return await commit(self._store, caller, work)

    async def _admit_new(self, target: ApiTarget, caller: Caller, body: Json) -> Json:
        if target.resource.kind == "Pod":
            self._admission.default_pod(target, body)
        if not self._admission.hooks_for(target, "CREATE"):
            return body
        return await self._admit(target, caller, "CREATE", body, None)

    async def _admit(
        self, target: ApiTarget, caller: Caller, operation: str, new: Json, old: Json | None
    ) -> Json:
        resource = target.resource
        write = Write(
            target=target,
            caller=caller,
            operation=operation,
            new=bodies.for_webhook(resource, new),
            old=bodies.for_webhook(resource, old) if old is not None else None,
        )
        admitted = await self._admission.admit(
            write, lambda body: bodies.finish(target, caller, body)
        )
        return bodies.from_webhook(admitted or {})

    def _insert(self, transaction: Transaction, target: ApiTarget, body: Json) -> StoredObject:
        resource = target.resource
        if transaction.get(target.collection, target.namespace, target.name) is not None:
            raise already_exists(resource.plural, resource.group, target.name)
        if resource.namespaced:
            self._admission.check_namespace(target)
        return transaction.put(target.collection, body)

    def _current(self, transaction: Transaction, target: ApiTarget) -> StoredObject:
        stored = transaction.get(target.collection, target.namespace, target.name)
        if stored is None:
            raise target.not_found()
        return stored

    def _prepare(self, target: ApiTarget, old: StoredObject, new: Json, replaces: bool) -> None:
        """Check preconditions in the new metadata, and restore what this path may not change."""
        resource = target.resource
        meta = new.setdefault("metadata", {})
        names = (resource.plural, resource.group, target.name)
        _check_name(target, meta)
        uid = meta.get("uid") or old.uid
        if uid != old.uid and replaces:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.uid}"
            raise conflict(*names, why)
        if uid != old.uid:
            cause = invalid_value("metadata.uid", uid, "field is immutable")
            raise invalid(resource.kind, resource.group, target.name, [cause])
        if meta.get("resourceVersion", "") not in ("", "0", str(old.version)):
            raise stale(*names)
        defaults.apply_defaults(resource, new)
        defaults.prepare_update(resource, target.subresource, old.load(), new)

    def _revise(
        self, transaction: Transaction, target: ApiTarget, old: StoredObject, new: Json
    ) -> StoredObject:
        resource = target.resource
        before = old.load()
        new["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        if new == before:
            return old
        if causes := validate_update(resource, target.subresource, before, new):
            raise invalid(resource.kind, resource.group, target.name, causes)
        meta = new["metadata"]
        released = "deletionTimestamp" in meta and not meta.get("finalizers")
        if released and not meta.get("deletionGracePeriodSeconds"):
            return transaction.delete(target.collection, new)
        return transaction.put(target.collection, new)


def _check_name(target: ApiTarget, meta: Json) -> None:
    if meta.get("name", target.name) != target.name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL "
            f"({target.name})"
        )
