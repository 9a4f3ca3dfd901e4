"""Findings of a walk over a pod's containers, kept by row of the view as costs are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.choice.picks import Picks
from hamicommon.placement.cluster.cache import ByRow
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import ClusterView

Grants = tuple[ContainerGrant, ...]

_AMOUNTS = ("places", "memory", "core", "slots")


def shape_key(request: PodRequest) -> Hashable:
    """Return a key that is equal for pods that find the same on the same nodes."""
    return (
        tuple((container.role, container.requests) for container in request.containers),
        tuple(sorted(request.selections.items(), key=lambda item: item[0])),
        request.policy,
    )


class WalkedShape(ByRow):
    """Rows that take one shape of pod, and the cards that each of its requests would take."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.fits = np.zeros(rows, np.bool_)
        self._chosen = np.zeros(rows, np.bool_)
        """Rows where a vendor's chooser decided: its answers are not kept."""
        self._picks: tuple[Picks, ...] = ()
        """One per request; arrays are (rows, count)."""

    def keep(self, rows: Int, found: Sequence[Picks]) -> None:
        """Keep what the requests take of these rows, all of which fit."""
        if not self._picks:
            self._picks = tuple(_empty(picks, len(self.fits)) for picks in found)
        self._chosen[rows] = False
        for kept, picks in zip(self._picks, found, strict=True):
            for name in _AMOUNTS:
                getattr(kept, name)[rows] = getattr(picks, name)
            if picks.chosen is not None:
                self._chosen[rows] |= [answer is not None for answer in picks.chosen]

    def grants(self, row: int, request: PodRequest, view: ClusterView) -> Grants | None:
        """Return what every container gets on the row; None: it has to be walked."""
        if self._chosen[row] or not self._picks:
            return None
        usages = view.usages(row)
        return tuple(
            ContainerGrant(
                index=index,
                name=container.name,
                role=container.role,
                shares=tuple(
                    share
                    for each in self._picks
                    if each.container == index
                    for share in each.shares(row, usages, view)
                ),
            )
            for index, container in enumerate(request.containers)
        )


def _empty(picks: Picks, rows: int) -> Picks:
    def zeros() -> Int:
        return np.zeros((rows, picks.places.shape[1]), np.int64)

    return Picks(
        container=picks.container,
        vendor=picks.vendor,
        places=zeros(),
        memory=zeros(),
        core=zeros(),
        slots=zeros(),
    )
