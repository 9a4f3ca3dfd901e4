"""Whether a path reaches another, as a container runtime resolves both.

Lexically: links in an image or on a host can't be seen from a pod's spec. `/var/run` is the one
link that every Linux has.
"""

from __future__ import annotations

from collections.abc import Iterable

Parts = tuple[str, ...]
"""A path's components from the root; empty: the root."""


def parts_of(path: str) -> Parts:
    """The components of `path`, which starts at the root whether it begins with a slash or not:
    `//etc/x/./../hami/` is (etc, hami). `..` at the root stays there."""
    found: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del found[-1:]
        elif part not in ("", "."):
            found.append(part)
    return tuple(found[1:] if found[:2] == ["var", "run"] else found)


def covers(path: Parts, guarded: Iterable[Parts]) -> Parts | None:
    """The first of `guarded` that `path` is, is above or is below; None: it is beside all."""
    for other in guarded:
        shared = min(len(path), len(other))
        if path[:shared] == other[:shared]:
            return other
    return None


def is_within(path: Parts, folder: Parts) -> bool:
    """Whether `path` is the folder or is below it."""
    return path[: len(folder)] == folder


def text_of(parts: Parts) -> str:
    """As people write it."""
    return "/" + "/".join(parts)
