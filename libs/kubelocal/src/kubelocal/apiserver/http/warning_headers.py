"""Warnings of a call as HTTP headers, bounded and encoded as kube-apiserver does. Pure.

Rules of k8s.io/apimachinery `net.NewWarningHeader` and k8s.io/apiserver `WithWarningRecorder`:
a text with control characters is no header and left out, a repeated one counts once, and beyond
4096 characters in all each is cut at 256.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MOST_CHARACTERS = 4096
MOST_CHARACTERS_OF_ONE = 256


def warning_headers(texts: Iterable[str]) -> list[bytes]:
    """The values of the `Warning` headers, in order."""
    fit = [text for text in dict.fromkeys(texts) if text and not _has_control(text)]
    if sum(map(len, fit)) > MOST_CHARACTERS:
        fit = _cut(fit)
    return [_header(text) for text in fit]


def _cut(texts: list[str]) -> list[str]:
    kept, written = [], 0
    for text in texts:
        if written >= MOST_CHARACTERS:
            break
        kept.append(text[:MOST_CHARACTERS_OF_ONE])
        written += len(kept[-1])
    return kept


def _has_control(text: str) -> bool:
    return any(unicodedata.category(each) in ("Cc", "Cs") for each in text)


def _header(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'.encode()
