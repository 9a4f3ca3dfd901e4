"""Pod lists made of openb's own, as its authors made theirs: other parts of each kind of pod."""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

Row = dict[str, str]
COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")


class Lists:
    """Makes lists of the two that they are drawn from."""

    def __init__(self, default: str, gpuspec25: str) -> None:
        """Both as text of CSV files."""
        self._all, self._named = _rows(default), _rows(gpuspec25)
        self._by: dict[str, list[Row]] = defaultdict(list)
        for row in self._all:
            self._by[_kind(row)].append(row)

    def without_cards(self, draw: random.Random, pods: int) -> list[Row]:
        """Return the list with so many pods without cards."""
        with_cards = [row for row in self._all if _kind(row) != "cpu"]
        return with_cards + _drawn(draw, self._by["cpu"], pods)

    def shares(self, draw: random.Random, part: float) -> list[Row]:
        """Shares ask for this part of the cards; as many pods as there were."""
        share, others = self._by["share"], self._by["one"] + self._by["multi"]
        mine = sum(_milli(row) for row in share) / len(share)
        theirs = sum(_milli(row) for row in others) / len(others)
        pods = len(share) + len(others)
        count = round(pods * part * theirs / (mine * (1 - part) + part * theirs))
        return _drawn(draw, share, count) + _drawn(draw, others, pods - count) + self._by["cpu"]

    def several(self, draw: random.Random, times: float) -> list[Row]:
        """Return the list with so many times the pods with several cards."""
        multi = self._by["multi"]
        return self._all + [draw.choice(multi) for _ in range(round((times - 1) * len(multi)))]

    def models(self, draw: random.Random, part: float) -> list[Row]:
        """This part of the pods names models, as those of gpuspec25 do."""
        rows = [dict(row) for row in self._named]
        wanted: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if row["gpu_spec"]:
                wanted[_kind(row)].append(row["gpu_spec"])
        with_cards = [row for row in rows if _kind(row) != "cpu"]
        named = [row for row in with_cards if row["gpu_spec"]]
        more = round(part / 0.25 * len(named)) - len(named)
        if more < 0:
            for row in draw.sample(named, -more):
                row["gpu_spec"] = ""
        else:
            free = [row for row in with_cards if not row["gpu_spec"]]
            for row in draw.sample(free, more):
                row["gpu_spec"] = draw.choice(wanted[_kind(row)])
        return rows


MADE: dict[str, Callable[[Lists, random.Random], list[Row]]] = {
    "cpu100": lambda lists, draw: lists.without_cards(draw, 839),
    "cpu250": lambda lists, draw: lists.without_cards(draw, 2232),
    "gpushare20": lambda lists, draw: lists.shares(draw, 0.2),
    "gpushare40": lambda lists, draw: lists.shares(draw, 0.4),
    "gpushare80": lambda lists, draw: lists.shares(draw, 0.8),
    "gpushare100": lambda lists, draw: lists.shares(draw, 1.0),
    "gpuspec20": lambda lists, draw: lists.models(draw, 0.20),
    "gpuspec33": lambda lists, draw: lists.models(draw, 0.33),
    "multigpu40": lambda lists, draw: lists.several(draw, 8.47),
    "multigpu50": lambda lists, draw: lists.several(draw, 12.7),
}
"""By the name of the authors' list that each resembles; `multigpu40`: of the demand, in percent."""


def make_list(lists: Lists, name: str) -> str:
    """One of `MADE`, as text of a CSV file; always the same."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(MADE[name](lists, random.Random(name))):
        writer.writerow({**row, "name": f"p-{number:05d}"})
    return text.getvalue()


def _rows(text: str) -> list[Row]:
    return [{"gpu_spec": "", **row} for row in csv.DictReader(io.StringIO(text))]


def _kind(row: Row) -> str:
    cards = int(row["num_gpu"])
    if cards == 1 and int(row["gpu_milli"]) < 1000:
        return "share"
    return {0: "cpu", 1: "one"}.get(cards, "multi")


def _milli(row: Row) -> int:
    return int(row["num_gpu"]) * int(row["gpu_milli"])


def _drawn(draw: random.Random, rows: Sequence[Row], count: int) -> list[Row]:
    """Draw so many rows, each once at most; more than there are: each once, and others again."""
    if count <= len(rows):
        return draw.sample(rows, count)
    return [*rows, *(draw.choice(rows) for _ in range(count - len(rows)))]
