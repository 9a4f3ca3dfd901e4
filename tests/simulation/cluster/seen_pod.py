"""A pod as its kubelet has seen it by its watch so far."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from hamicommon.k8s.types import Json


@dataclass(slots=True, eq=False)
class SeenPod:
    """A pod of the node, and what is to become of it."""

    seen: Json
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    coming: deque[tuple[str, Json]] = field(default_factory=deque)
    """(type, object) of the watch that are on their way, oldest first."""
    gone: bool = False
    over: bool = False
    finish: bool = False
    restart: bool = False
    due: float = 0.0

    @property
    def uid(self) -> str:
        return str(self.seen["metadata"]["uid"])

    @property
    def leaving(self) -> bool:
        return self.gone or self.finish or bool(self.seen["metadata"].get("deletionTimestamp"))

    def containers(self) -> list[tuple[str, Json]]:
        """(init or app, container), in the order of their starts."""
        spec = self.seen["spec"]
        return [
            *(("init", container) for container in spec.get("initContainers") or ()),
            *(("app", container) for container in spec["containers"]),
        ]

    def statuses(self) -> list[Json]:
        """Return the statuses of its running app containers."""
        return [
            {"name": container["name"], "containerID": f"containerd://{container['name']}"}
            for role, container in self.containers()
            if role == "app"
        ]

    def see_next(self) -> None:
        """The oldest change that is on its way has come."""
        kind, self.seen = self.coming.popleft()
        self.gone = self.gone or kind == "DELETED"
        self.changed.set()
