"""Lays an answer of `hamictl simulate --jsonl` beside the model's."""

import json
from collections.abc import Iterator

from hamicommon.k8s.types import Json

from tests.reference.holdings import ALLOCATED


def differences(engine: Json, model: Json) -> Iterator[str]:
    """Yield each difference of the engine's answer from the model's in one sentence.

    Of an error only that there is one is compared: HAMi's messages differ from ours.
    """
    for name in sorted(engine["nodes"].keys() | model["nodes"].keys()):
        ours, theirs = plain(engine["nodes"].get(name)), plain(model["nodes"].get(name))
        if ours != theirs:
            yield f"{name}: engine {ours}, model {theirs}"
    if engine["chosen"] != model["chosen"]:
        yield f"chosen: engine {engine['chosen']}, model {model['chosen']}"
    if bool(engine["error"]) != bool(model["error"]):
        yield f"error: engine {engine['error']!r}, model {model['error']!r}"


def plain(node: Json | None) -> Json | None:
    """A node's answer in the model's form: slices by vendor, without empty containers."""
    if node is None:
        return None
    if "error" in node:
        return {"fits": False, "error": True}
    if "annotations" in node:
        return {"fits": True, "cards": cards_in(node["annotations"])}
    return node


def cards_in(annotations: Json) -> Json:
    """The slices named in a pod's annotations by vendor, and under `mig` its MIG reservations."""
    found: Json = {}
    for vendor, key in ALLOCATED.items():
        containers = [
            [
                [entry.split(",")[0], entry.split(",")[1], *map(int, entry.split(",")[2:4])]
                for entry in piece.split(":")
                if entry
            ]
            for piece in annotations.get(key, "").split(";")
            if piece
        ]
        if containers:
            found[vendor] = containers
    if "hami.io/vgpu-mig-allocations" in annotations:
        found["mig"] = json.loads(annotations["hami.io/vgpu-mig-allocations"])
    return found
