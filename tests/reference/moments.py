"""A pod's holdings of each card, moment by moment of its life.

Written from Kubernetes' rule for sidecars (kubernetes.io/docs/concepts/workloads/pods/
sidecar-containers, "Resource sharing within containers"): init containers start in the order of the
spec; one with restartPolicy Always keeps running, any other ends before the next begins; when all
have begun, the app containers run together. No code of the engine is used.
"""

from collections.abc import Iterable, Mapping, Sequence

from hamicommon.k8s.types import Json

Held = tuple[int, int, int]
"""Slots, MiB of memory, percent of cores."""
Slice = tuple[str, Held]
"""The card, and the held amounts."""


def moments(spec: Json) -> list[list[str]]:
    """By moment, the names of the containers that run at it."""
    found: list[list[str]] = []
    going_on: list[str] = []
    for container in spec.get("initContainers") or []:
        found.append([*going_on, container["name"]])
        if container.get("restartPolicy") == "Always":
            going_on.append(container["name"])
    found.append([*going_on, *(container["name"] for container in spec["containers"])])
    return found


def held_at(running: Iterable[str], slices: Mapping[str, Sequence[Slice]]) -> dict[str, Held]:
    """Per card, what these containers hold of it together."""
    found: dict[str, Held] = {}
    for name in running:
        for card, amounts in slices.get(name, ()):
            before = found.get(card, (0, 0, 0))
            found[card] = (
                before[0] + amounts[0],
                before[1] + amounts[1],
                before[2] + amounts[2],
            )
    return found


def most_held(spec: Json, slices: Mapping[str, Sequence[Slice]]) -> dict[str, Held]:
    """Per card and dimension, the most that is held at any moment."""
    found: dict[str, Held] = {}
    for running in moments(spec):
        for card, now in held_at(running, slices).items():
            before = found.get(card, (0, 0, 0))
            found[card] = (
                max(before[0], now[0]),
                max(before[1], now[1]),
                max(before[2], now[2]),
            )
    return found
