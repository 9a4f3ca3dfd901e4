"""Pins of `scripts/requirements` for images: what their members need."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parents[3] / "requirements"
IMAGES = {
    **{name: [f"hami-{name}"] for name in ("scheduler", "webhook", "node-agent", "metrics")},
    "tools": ["hamictl[replay]", "kubelocal"],
}
OWN = re.compile(r"hami[a-z-]*|kubelocal")


def pins(name: str) -> dict[str, set[str]]:
    """Return each package's lines without their markers, which depend on who needs it."""
    found: dict[str, set[str]] = {}
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if pin := re.match(r"([a-z0-9-]+)(==[^ ;]+)", line):
            found.setdefault(pin[1], set()).add(pin[2])
    return found


def list_needed(members: list[str]) -> set[str]:
    """Return the third-party packages that these need here, by their metadata."""
    todo = [(Requirement(text), "") for text in members]
    known: set[tuple[str, str]] = set()
    while todo:
        requirement, asked_by = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": asked_by}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {e for n, e in known if n == name}:
            known.add((name, extra))
            todo += [(Requirement(text), extra) for text in metadata.requires(name) or ()]
    return {name for name, _ in known if not OWN.fullmatch(name)}


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_what_its_members_need_in_the_versions_of_the_lock(image: str) -> None:
    lock, found = pins("dev"), pins("common") | pins(image)

    assert list_needed(IMAGES[image]) <= found.keys(), "run: scripts/requirements"
    assert all(versions <= lock[name] for name, versions in found.items())
    assert (FOLDER / f"{image}.txt").read_text().startswith("-r common.txt\n")


def test_a_service_installs_nothing_that_it_does_not_need() -> None:
    for service in IMAGES.keys() - {"tools"}:
        surplus = (pins("common") | pins(service)).keys() - list_needed(IMAGES[service])
        # Of other platforms and Pythons than this one.
        markers = (FOLDER / f"{service}.txt").read_text() + (FOLDER / "common.txt").read_text()
        assert all(re.search(rf"^{name}==.* ; ", markers, re.MULTILINE) for name in surplus)
