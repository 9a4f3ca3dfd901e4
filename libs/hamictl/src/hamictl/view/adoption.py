"""What `hamictl adopt` shows. Pure: the scheduler's answer in, tables and sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from hamictl.view.tables import cores, memory, of, table

Row = Mapping[str, Any]

_UNITS = {"slots": "slots", "memory_mib": "MiB", "core_percent": "% of cores"}


def adoption(answer: Mapping[str, Any]) -> Iterator[Table | str]:
    """Pods, cards that hold too much, cards that hold more than the ledger has, and the sum."""
    rows = answer["pods"]
    shown = [row for row in rows if row["outcome"] != "held"]
    if shown:
        yield table(
            "Pods",
            ("POD", "NODE", "OUTCOME", "SLICES / WHY NOT"),
            (
                (
                    f"{row['namespace']}/{row['name']}",
                    of(row["node"]),
                    _outcome(row),
                    "\n".join((*_slices(row), *filter(None, (row["sentence"],)))),
                )
                for row in shown
            ),
        )
    yield from (f"not read: {problem}" for problem in answer["problems"])
    for card in answer["overfull"]:
        yield (
            f"over-full: card {card['uuid']} on {card['node']} holds {_beyond(card)}; it gets no "
            "new slices until enough of its pods have ended"
        )
    for card in answer["unaccounted"]:
        yield (
            f"not in the ledger: {', '.join(card['pods'])} on card {card['uuid']} of "
            f"{card['node']}; close it until they are gone: kubectl annotate --overwrite node "
            f"{card['node']} hami.io/device-cordon={card['uuid']} (a comma list, if more are)"
        )
    yield _sum(answer)


def _outcome(row: Row) -> str:
    return f"{row['outcome']}: {row['why']}" if row["why"] else str(row["outcome"])


def _slices(row: Row) -> list[str]:
    return [
        f"{one['container']}: {memory(one['memory_mib'])}, {cores(one['core_percent'])}"
        f" of {one['uuid']}"
        for one in row["slices"]
    ]


def _beyond(card: Row) -> str:
    used, has = card["used"], card["has"]
    return " and ".join(
        f"{used[key]} of {has[key]} {unit}" for key, unit in _UNITS.items() if used[key] > has[key]
    )


def _sum(answer: Mapping[str, Any]) -> str:
    counts = Counter(row["outcome"] for row in answer["pods"])
    counted = ", ".join(
        f"{counts[outcome]} {phrase}"
        for outcome, phrase in (
            ("adopted", "adopted"),
            ("would adopt", "would be adopted"),
            ("held", "in the ledger already"),
            ("refused", "refused"),
        )
        if counts[outcome]
    )
    dry = "" if answer["applied"] else "; nothing was written, --apply writes"
    return f"{counted or 'no pods of HAMi'}{dry}"
