"""Run work whose failure is logged and does not stop the caller."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hamicommon.clipping import clip
from hamicommon.errors import HamiError


@contextmanager
def log_failure(
    logger: logging.Logger,
    message: str,
    *,
    of: type[HamiError] = HamiError,
    but: type[HamiError] | None = None,
    level: int = logging.WARNING,
    **about: object,
) -> Iterator[None]:
    """Log an error `of` this kind as `message`, with `about` as fields; all others pass.

    Errors of the kind `but` pass too.
    """
    try:
        yield
    except of as exc:
        if but is not None and isinstance(exc, but):
            raise
        logger.log(level, message, extra={**about, "error": clip(str(exc))})
