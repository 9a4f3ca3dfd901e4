"""Cut text that users chose to a maximum length and to one line, for storing, logging or showing.

A user who may create a pod, write on a node or fill a container's directory chooses names,
annotations and reasons. Input: that text, of any length. Output: the part that a row, a log line,
an event, a bus message or a span may hold. A NUL, a line break, a terminal's control sequence, half
a surrogate pair and characters that change the direction of writing are never in it.
"""

from __future__ import annotations

CLIP_LIMIT = 256
"""Default maximum of characters, within the 1024 bytes of an event's note.

The API server counts bytes (events.k8s.io/v1, NoteLengthLimit), and a character may take four.
"""

_ELLIPSIS = "..."


def clip(text: str, limit: int = CLIP_LIMIT) -> str:
    r"""Return at most `limit` printable characters of the text; `...` replaces the rest.

    Unprintable characters (`str.isprintable`) are written as Python's escapes (`\n`, `\x1b`,
    `\u202e`), and an escape is never cut in the middle. Text that fits is returned unchanged, so
    clipping twice equals clipping once. Reads about `limit` characters only, however long the text
    is.
    """
    if len(text) <= limit and text.isprintable():
        return text
    shown = [_escape(character) for character in text[: limit + 1]]
    if len(text) <= limit and sum(map(len, shown)) <= limit:
        return "".join(shown)
    room = limit - len(_ELLIPSIS)
    kept: list[str] = []
    for part in shown:
        room -= len(part)
        if room < 0:
            break
        kept.append(part)
    return ("".join(kept) + _ELLIPSIS)[:limit]


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
