"""Whatever a line of the batch form holds, it gets an answer of the known form."""

import json
from random import Random
from typing import Any

from hamicommon.simulation.cases import Simulator

from tests.reference.random import generate
from tests.unit.hamicommon.simulation.objects import every_vendor

VENDORS = every_vendor()
SIMULATOR = Simulator(vendors=VENDORS)
NAMES = [vendor.name for vendor in VENDORS]
CASES = 150

ODD: list[Any] = [
    None, True, 0, -1, 1.5, 10**20, "", "x", "-1", "1e9", "16Gi", "0.5", [], [1], {}, {"a": 1},
    "[" * 5000, ":;,", [None], {"name": None}, "99999999999999999999", "2147483647",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything in a JSON value but itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, key))
    return found


def spoil(random: Random, case: Any) -> None:
    """Puts something odd anywhere in the case, or inside the JSON of one of its annotations."""
    *path, last = random.choice(places(case))
    holder = case
    for key in path:
        holder = holder[key]
    text = holder[last]
    if isinstance(text, str) and text.startswith("[{"):
        decoded = json.loads(text)
        spoil(random, decoded)
        holder[last] = json.dumps(decoded)
    elif isinstance(text, str) and "," in text:
        pieces = text.split(",")
        pieces[random.randrange(len(pieces))] = str(random.choice(ODD))
        holder[last] = ",".join(pieces)
    else:
        holder[last] = random.choice(ODD)


def test_a_spoilt_case_is_answered_like_any_other() -> None:
    for seed in range(CASES):
        random = Random(seed)
        case = generate.case(random, NAMES)
        for _ in range(random.randint(1, 3)):
            spoil(random, case)
        answer = SIMULATOR.answer_line(json.dumps(case), seed)

        assert answer.keys() == {"name", "nodes", "chosen", "error"}, f"seed {seed}"
        assert answer["error"] or answer["nodes"] or not case["in"]["nodes"], f"seed {seed}"
        for node in answer["nodes"].values():
            assert node["fits"] in (True, False), f"seed {seed}"
