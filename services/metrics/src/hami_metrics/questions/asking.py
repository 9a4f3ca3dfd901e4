"""Asking the ledger for somebody: one page of an answer, without what is not theirs to see."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol

from hamicommon.access.checks import NotAllowed
from hamicommon.ledger.questions import (
    PAGE_ROWS,
    Answer,
    Audience,
    Question,
    answer,
    question,
)

from hami_metrics.domain.redaction import WITHHELD, ShowOwners, redacted
from hami_metrics.questions.sealing import Seal
from hami_metrics.questions.viewers import Viewer, Viewers


class ReadConnections(Protocol):
    """Connections that read the ledger."""

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Raises: Unavailable."""
        ...


class Asking:
    """Asks named questions for viewers."""

    def __init__(
        self, ledger: ReadConnections, viewers: Viewers, seal: Seal, show: ShowOwners
    ) -> None:
        self._ledger = ledger
        self._viewers = viewers
        self._seal = seal
        self._show = show

    async def ask(
        self,
        viewer: Viewer,
        name: str,
        parameters: Mapping[str, object],
        *,
        limit: int = PAGE_ROWS,
        after: str | None = None,
    ) -> Answer:
        """One page; `Answer.next` is sealed.

        Raises: NotFound, InvalidRequest, NotAllowed, Unavailable.
        """
        asked = question(name)
        await self._check(viewer, asked, parameters)
        position = None if after is None else self._seal.open(after)
        async with self._ledger.connection() as connection:
            found = await answer(connection, name, parameters, limit=limit, after=position)
        if found.next is not None:
            found = replace(found, next=self._seal.close(found.next))
        return found if viewer.sees_all else await self._for(viewer, found)

    async def _check(
        self, viewer: Viewer, asked: Question, parameters: Mapping[str, object]
    ) -> None:
        """What a parameter names is no secret to who may name it. Raises: NotAllowed."""
        if viewer.sees_all:
            return
        if asked.audience is Audience.CLUSTER:
            raise NotAllowed(
                f"{viewer.username} may not ask {asked.name}: it is about all namespaces, which"
                f" takes the ClusterRole hami-reader"
            )
        if self._show is ShowOwners.NAMES:
            return
        namespace = str(parameters.get("namespace") or "")
        if namespace and not await self._viewers.seen(viewer, [namespace]):
            raise NotAllowed(f"{viewer.username} may not list pods in namespace {namespace[:253]}")
        if parameters.get("pod") and not namespace:
            raise NotAllowed(
                f"parameter pod: {viewer.username} sees some namespaces alone, so it takes"
                f" parameter namespace beside it"
            )

    async def _for(self, viewer: Viewer, found: Answer) -> Answer:
        namespaces = {row["namespace"] for row in found.rows if row.get("namespace")}
        seen = await self._viewers.seen(viewer, namespaces)
        if seen == namespaces:
            return found
        rows = redacted(found.question, found.rows, seen=seen, show=self._show)
        withheld = {
            column.name: WITHHELD
            for column in found.question.columns
            if column.names_somebody and self._show is not ShowOwners.NAMES
        }
        return replace(found, rows=rows, unknown={**found.unknown, **withheld})
