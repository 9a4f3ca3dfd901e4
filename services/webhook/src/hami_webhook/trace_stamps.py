"""The trace stamps that this replica has lately put on pods.

The API server shows a pod again when another webhook changed it after us (`reinvocationPolicy`).
Its stamp is ours then and stays: the same pod twice is no second patch. A stamp that somebody
brings along from another pod is none of these, and is replaced. A replica that did not see the pod
first replaces the stamp too: the pod's trace then begins at the second look, and nothing is lost.
"""

from __future__ import annotations

from collections import OrderedDict

KEEP_S = 30.0
"""The API server answers a client within 30 s at most, so it asks again within that."""
MOST = 4096


class Stamps:
    """Stamp -> for whom and when; bounded in number and age."""

    def __init__(self) -> None:
        self._given: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def give(self, stamp: str, pod: str, *, now_s: float) -> None:
        """Remembers that the pod (`namespace/name`) has this stamp from us."""
        self._given[stamp] = (pod, now_s)
        if len(self._given) > MOST:
            self._given.popitem(last=False)

    def has(self, stamp: str, pod: str, *, now_s: float) -> bool:
        """Whether the stamp is ours, for this pod, and of the same request."""
        given = self._given.get(stamp)
        return given is not None and given[0] == pod and now_s - given[1] < KEEP_S
