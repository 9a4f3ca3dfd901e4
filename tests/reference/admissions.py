"""HAMi's recorded admissions laid beside ours: verdicts, and pods after the patch.

A record is a line of `hamictl lint --jsonl` with what HAMi's real webhook answered. `recorded.py`
sends files of them here.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy

from hamicommon.k8s.quantities import canonical, is_zero
from hamicommon.k8s.types import Json
from jsonpatch import apply_patch

COMMAND = ("hamictl", "lint", "--jsonl", "--enable-ascend", "--enable-iluvatar")
NO_CARD = "no card"
"""HAMi takes over a pod that asks for 0 cards, and asks for all cores of none; we leave it be."""
EARLY_NO = "early no"
"""An amount that can never be given is refused, with what to write; HAMi drops it in silence."""


def compare(records: Sequence[Json]) -> tuple[Counter[str], list[str]]:
    """How many answers are `equal`, an `early no` or of `no card`; a sentence for each other."""
    lines = "".join(json.dumps({"name": r["name"], "pod": r["pod"]}) + "\n" for r in records)
    ran = subprocess.run(COMMAND, input=lines.encode(), capture_output=True, check=True)
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    found, unexplained = Counter[str](), list[str]()
    for theirs, ours in zip(records, answers, strict=True):
        if theirs["allowed"] and not ours["allowed"] and "expected " in ours["message"]:
            found[EARLY_NO] += 1
        elif ours["allowed"] and not ours["patch"] and _asks_for_none(theirs["pod"]):
            found[NO_CARD] += 1
        elif theirs["allowed"] != ours["allowed"]:
            both = f"our verdict is {_verdict(ours)}, HAMi's was {_verdict(theirs)}"
            unexplained.append(f"{theirs['name']}: {both}: {ours['message']!r}")
        elif _after(theirs["pod"], theirs["patch"]) != _after(theirs["pod"], ours["patch"]):
            both = f"our patch is {ours['patch']}, HAMi's was {theirs['patch']}"
            unexplained.append(f"{theirs['name']}: {both}")
        else:
            found["equal"] += 1
    return found, unexplained


def _asks_for_none(pod: Json) -> bool:
    """Whether all amounts of all containers are 0."""
    containers = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    resources = [(each.get("resources") or {}).get("limits") or {} for each in containers]
    return all(is_zero(amount) for limits in resources for amount in limits.values())


def _verdict(answer: Json) -> str:
    return "yes" if answer["allowed"] else "no"


def _after(pod: Json, patch: list[Json]) -> Json:
    """The patched pod, without what HAMi's patch changes by reading and writing it (protocol 3)."""
    after: Json = deepcopy(apply_patch(pod, patch))
    after.pop("status", None)
    if not (after.get("metadata") or {}).get("annotations"):
        after.get("metadata", {}).pop("annotations", None)
    for part in ("initContainers", "containers"):
        for container in after["spec"].get(part) or ():
            for amounts in (container.get("resources") or {}).values():
                amounts |= {name: canonical(str(amount)) for name, amount in amounts.items()}
    return after
