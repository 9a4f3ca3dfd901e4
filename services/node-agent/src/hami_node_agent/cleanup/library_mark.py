"""The mark by which libvgpu knows that the agent installed it.

The library reads it in `native/libvgpu/src/config/installed.c`. A marked one that finds no limits
file allows no card: in a container of ours the file was hidden from it. The same build without the
mark takes HAMi's variables then, for those who use it alone or in HAMi's place. The mark is in the
file, which containers mount read-only.
"""

from __future__ import annotations

_UNMARKED = b"libvgpu limits file: optional\0"
_MARKED = b"libvgpu limits file: required\0"


class NoPlaceForMark(ValueError):
    """It is no build of libvgpu that looks for the mark."""


def marked(content: bytes) -> bytes:
    """The library's bytes with the mark; marked ones are returned as they are.

    Raises: NoPlaceForMark.
    """
    if content.count(_MARKED) == 1 and _UNMARKED not in content:
        return content
    if content.count(_UNMARKED) != 1:
        raise NoPlaceForMark(
            "without a limits file it would limit nothing, and it has no place for the agent's "
            "mark against that; build it with `make -C native`"
        )
    return content.replace(_UNMARKED, _MARKED)
