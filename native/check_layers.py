"""Arrows between folders of C sources that point down, and no circle that is not declared.

    check_layers.py LAYERS SOURCES OBJECTS

LAYERS names the folders of SOURCES from the top, a layer a line: a folder uses folders further
down, those of one line do not use each other. "7 units in a circle: graph memory" is a layer whose
folders do, with the size of their largest circle, which may not grow; when it shrinks, the line has
to follow. `#` begins a comment.

A unit is a source with its header, named `folder/name`. One unit uses another when its object needs
a symbol that the other's object defines (`nm`), or when it includes the other's header. Prints each
circle, each arrow that points up or sideways, and what makes them; then the exit status is 1.
"""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Unit -> unit that it uses -> the symbols and headers by which it does.
Uses = dict[str, dict[str, set[str]]]


@dataclass(frozen=True, slots=True)
class Layer:
    """Folders that may use each other, and what lies below them."""

    folders: frozenset[str]
    circle: int
    """Units in the largest circle that its folders form; 0: they do not use each other."""


def layers_of(text: str) -> list[Layer]:
    """The layers of a file, from the top."""
    layers = []
    for line in text.splitlines():
        declared, _, folders = line.partition("#")[0].rpartition(" units in a circle: ")
        if folders.strip():
            layers.append(Layer(frozenset(folders.split()), int(declared or 0)))
    return layers


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
    """Add what the units use by including a header."""
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


def folder_of(unit: str) -> str:
    """Folder of a unit."""
    return unit.split("/")[0]


def misdirected_arrows(uses: Uses, layers: list[Layer]) -> list[str]:
    """A line for each arrow between folders that does not point down."""
    level = {folder: at for at, layer in enumerate(layers) for folder in layer.folders}
    lines = []
    for unit, used in sorted(uses.items()):
        for other, by in sorted(used.items()):
            above, below = level[folder_of(unit)], level[folder_of(other)]
            sideways = above == below and folder_of(unit) != folder_of(other)
            if above > below or (sideways and not layers[above].circle):
                direction = "sideways" if sideways else "up"
                lines.append(f"{unit} -> {other} points {direction}: {', '.join(sorted(by))}")
    return lines


def undeclared_circles(uses: Uses, layers: list[Layer]) -> list[str]:
    """The circles that no layer has declared, in lines, and the declarations that are not so."""
    lines = []
    largest = dict.fromkeys(layers, 0)
    for circle in circles(uses):
        folders = {folder_of(unit) for unit in circle}
        layer = next((layer for layer in layers if layer.circle and folders <= layer.folders), None)
        if layer is not None and len(circle) <= layer.circle:
            largest[layer] = max(largest[layer], len(circle))
            continue
        lines.append(f"a circle of {len(circle)} units: {', '.join(circle)}")
        for unit in circle:
            for other in sorted(set(uses[unit]) & set(circle)):
                lines.append(f"  {unit} -> {other}: {', '.join(sorted(uses[unit][other]))}")
    for layer, units in largest.items():
        if units < layer.circle and not lines:
            names = " ".join(sorted(layer.folders))
            lines.append(f"the circle of {names} has {units} units, not {layer.circle}")
    return lines


def check(layers: list[Layer], sources: Path, objects: Path) -> list[str]:
    """Return what is wrong, in lines."""
    files = sorted(sources.glob("*/*.c"))
    folders = {file.parent.name for file in sources.glob("*/*.[ch]")}
    listed = {folder for layer in layers for folder in layer.folders}
    if folders != listed:
        return [f"the layers and {sources} differ: {', '.join(sorted(folders ^ listed))}"]
    uses = uses_by_symbol({file.stem: unit_of(sources, file) for file in files}, objects)
    add_includes(uses, sources)
    return misdirected_arrows(uses, layers) + undeclared_circles(uses, layers)


if __name__ == "__main__":
    listed, sources, objects = map(Path, sys.argv[1:])
    wrong = check(layers_of(listed.read_text()), sources, objects)
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    sys.exit(1 if wrong else 0)
