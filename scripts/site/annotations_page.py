"""The reference's page of pod annotations, from the rows of `hamicommon` and its vendors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hamicommon.device_config import DeviceConfig
from hamicommon.k8s.annotations import MAX_CHARACTERS
from hamicommon.k8s.pod_annotations import USER_ANNOTATIONS, UserAnnotation
from hamicommon.vendors.annotation_table import user_annotations, written_annotations
from hamicommon.vendors.registry import Vendors
from markup import table, text_of

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)


def annotations_page() -> str:
    """Every annotation of pods, with its writers and readers."""
    head = ("Annotation", "Value", "Meaning", "Read by", "A value that is not right")
    own = [_user_row(row) for row in USER_ANNOTATIONS]
    rows = [_user_row(row) for row in user_annotations(VENDORS)]
    written = _merge_rows(
        (f"`{row.name}`", row.writer, row.reader, text_of(row.holds))
        for row in written_annotations(VENDORS)
    )
    return "\n\n".join(
        (
            "# Annotations of pods",
            "The rows are in `hamicommon/k8s/pod_annotations.py` and in the modules of "
            "`hamicommon/vendors`; [Add a rule](../../libs/hamicommon/add-a-rule.md) leads "
            "through an example.\n"
            f"A value that chooses among cards has at most {MAX_CHARACTERS} characters: a pod "
            "with a longer one is refused.",
            "## What people write on every pod",
            table(head, own),
            "## What people write for the cards of one vendor",
            "Types are parts of a card's type, in any case. `<name>` is the name of a chip of "
            "Ascend or Iluvatar, such as `Ascend910B3`. What each vendor makes of them: "
            "[Vendors](../vendors.md).",
            table(head, _merge_rows(row for row in rows if row not in own)),
            "## What the services write",
            "From a pod that is created with one of these it is dropped "
            "([Admission](../admission.md)).",
            table(("Annotation", "Written by", "Read by", "Value"), written),
        )
    )


def _merge_rows(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Merge rows that differ only by the annotation's name into one, with chips as `<name>`."""
    kinds = Counter(type(vendor) for vendor in VENDORS)
    chips = [vendor.name for vendor in VENDORS if kinds[type(vendor)] > 1]
    # `Ascend910B4` is a part of `Ascend910B4-1`.
    chips.sort(key=len, reverse=True)
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for name, *rest in rows:
        chip = next((chip for chip in chips if chip in name), "")
        found.setdefault(tuple(rest), {})[name.replace(chip, "<name>") if chip else name] = None
    return [(", ".join(names), *rest) for rest, names in found.items()]


def _user_row(row: UserAnnotation[Any]) -> tuple[str, ...]:
    return (
        f"`{row.name}`",
        text_of(row.wanted.rstrip(",") + (f": `{row.example}`" if row.example else "")),
        text_of(row.holds),
        row.reader,
        row.effect,
    )
