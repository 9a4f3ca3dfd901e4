"""Variables of the images for the C library's heap, for the processes that a benchmark starts."""

from __future__ import annotations

import re
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parents[1] / "Dockerfile"


def heap_settings(stage: str) -> dict[str, str]:
    """The `MALLOC_` variables of that stage of the Dockerfile, which must set some."""
    _, _, after = DOCKERFILE.read_text().partition(f" AS {stage}\n")
    lines, _, _ = after.partition("\nFROM ")
    found = dict(re.findall(r"\b(MALLOC_\w+)=(\S+)", lines))
    if not found:
        raise ValueError(f"{DOCKERFILE.name}: stage {stage} sets no MALLOC_ variable")
    return found
