"""Isolate failures of single items in a background loop, so that other items continue.

Sooner or later a loop over pods, cards, directories or messages meets an item with an unforeseen
error. The item's work runs in a `with` block; its failure is logged and counted, and the loop
continues with the next item. An exception outside of such a block still ends the process, because
its damage is unknown.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType

from cachetools import TTLCache

from hamicommon.clipping import clip
from hamicommon.errors import HamiError

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 300.0
"""Minimum interval between tracebacks of the same item; each failure is counted."""
_MAX_LOGGED = 1024


class Bulkhead:
    """Catch, log and count unexpected exceptions of single items."""

    def __init__(
        self,
        on_failure: Callable[[str], None] = lambda _loop: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_failure = on_failure
        self._failures: Counter[str] = Counter()
        self._logged: TTLCache[tuple[str, str, str], None] = TTLCache(
            _MAX_LOGGED, LOG_INTERVAL_S, timer=clock
        )
        self._logging = Lock()  # some loops do an item's work in a thread

    @property
    def failures(self) -> Mapping[str, int]:
        """Return the number of unexpected failures since the start, by loop."""
        return dict(self._failures)

    def item(self, loop: str, name: str) -> Item:
        """Return a context in which unexpected exceptions of this item are caught.

        HamiError passes.
        """
        return Item(self, loop, name)

    def record_failure(self, loop: str, name: str, exc: Exception) -> None:
        """Count and log an unexpected exception of an item."""
        self._failures[loop] += 1
        self._on_failure(loop)
        self._log(loop, name, exc)

    def _log(self, loop: str, name: str, exc: Exception) -> None:
        key = (loop, clip(name), type(exc).__name__)
        with self._logging:
            if key in self._logged:
                return
            self._logged[key] = None
        logger.error(
            "Failed to process an item, the others continue",
            exc_info=exc,
            extra={"loop": loop, "item": key[1], "error": clip(f"{key[2]}: {exc}")},
        )


class Item:
    """Context manager for one item; a class, because an agent enters hundreds per round."""

    __slots__ = ("_bulkhead", "_loop", "_name")

    def __init__(self, bulkhead: Bulkhead, loop: str, name: str) -> None:
        self._bulkhead = bulkhead
        self._loop = loop
        self._name = name

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(exc, Exception) or isinstance(exc, HamiError):
            return False
        self._bulkhead.record_failure(self._loop, self._name, exc)
        return True
