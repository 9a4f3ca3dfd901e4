"""No circle between compilation units, and arrows between folders that point down.

    check_layers.py SOURCES OBJECTS

A unit is `folder/name.c` with its header. One unit uses another when its object needs a symbol that
the other's object defines (`nm`), or when it includes the other's header. Prints each circle, each
arrow that points up or sideways, and what makes them; then the exit status is 1.
"""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

# From the top. A folder uses folders further down; those of one line do not use each other.
LAYERS = (
    ("hooks",),
    ("memory", "compute"),
    ("state",),
    ("region",),
    ("config",),
    ("intercept",),
    ("base",),
)
# Unit -> unit that it uses -> the symbols and headers by which it does.
Uses = dict[str, dict[str, set[str]]]


def unit_of(sources: Path, file: Path) -> str:
    """`folder/name`."""
    return str(file.relative_to(sources).with_suffix(""))


def symbols(nm: str, objects: Iterable[Path], which: str) -> list[tuple[str, str]]:
    """(object, symbol) of all global symbols that the objects define, or need."""
    command = [nm, "-A", "-P", "-g", which, *map(str, objects)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = []
    for line in listing.splitlines():
        name, symbol = line.split()[:2]
        found.append((Path(name.rstrip(":")).stem, symbol))
    return found


def uses_by_symbol(units: dict[str, str], objects: Path) -> Uses:
    """`units`: name of the object -> unit."""
    nm = shutil.which("gcc-nm") or "nm"  # gcc's reads objects of link-time optimisation
    files = [objects / f"{name}.o" for name in units]
    definer = {symbol: units[name] for name, symbol in symbols(nm, files, "--defined-only")}
    uses: Uses = defaultdict(lambda: defaultdict(set))
    for name, symbol in symbols(nm, files, "--undefined-only"):
        if symbol in definer:
            uses[units[name]][definer[symbol]].add(symbol)
    return uses


def add_includes(uses: Uses, sources: Path) -> None:
    """Adds what the units use by including a header."""
    for file in sources.glob("*/*.[ch]"):
        unit = unit_of(sources, file)
        for header in re.findall(r'^#include "(\w+/\w+\.h)"', file.read_text(), re.MULTILINE):
            if (used := unit_of(sources, sources / header)) != unit:
                uses[unit][used].add(header)


def reachable(uses: Uses, start: str) -> frozenset[str]:
    """All that `start` uses, directly or not; itself too where it is part of a circle."""
    seen: set[str] = set()
    pending = [start]
    while pending:
        for used in uses.get(pending.pop(), {}):
            if used not in seen:
                seen.add(used)
                pending.append(used)
    return frozenset(seen)


def circles(uses: Uses) -> list[list[str]]:
    """The strongly connected components of two units and more, the largest first."""
    reach = {unit: reachable(uses, unit) for unit in uses}
    found = {
        frozenset(other for other in reach[unit] if unit in reach.get(other, ()))
        for unit in uses
        if unit in reach[unit]
    }
    return sorted((sorted(circle) for circle in found), key=len, reverse=True)


def misdirected(uses: Uses) -> list[str]:
    """A line for each arrow between folders that does not point down."""
    level = {folder: at for at, folders in enumerate(LAYERS) for folder in folders}
    lines = []
    for unit, used in sorted(uses.items()):
        for other, by in sorted(used.items()):
            above, below = unit.split("/")[0], other.split("/")[0]
            if above != below and level[above] >= level[below]:
                direction = "up" if level[above] > level[below] else "sideways"
                lines.append(f"{unit} -> {other} points {direction}: {', '.join(sorted(by))}")
    return lines


def check(sources: Path, objects: Path) -> list[str]:
    """What is wrong, in lines."""
    files = sorted(sources.glob("*/*.c"))
    folders = {file.parent.name for file in sources.glob("*/*.[ch]")}
    listed = {folder for layer in LAYERS for folder in layer}
    if folders != listed:
        return [f"LAYERS and {sources} differ: {', '.join(sorted(folders ^ listed))}"]
    uses = uses_by_symbol({file.stem: unit_of(sources, file) for file in files}, objects)
    add_includes(uses, sources)
    wrong = misdirected(uses)
    for circle in circles(uses):
        wrong.append(f"a circle of {len(circle)} units: {', '.join(circle)}")
        for unit in circle:
            for other in sorted(set(uses[unit]) & set(circle)):
                wrong.append(f"  {unit} -> {other}: {', '.join(sorted(uses[unit][other]))}")
    return wrong


if __name__ == "__main__":
    wrong = check(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    sys.exit(1 if wrong else 0)
