"""Limit rates per key with token buckets."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from cachetools import LRUCache

MAX_KEYS = 10_000
"""Maximum number of keys; the least recently used one is forgotten first."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float
    refused: int = 0


class RateLimit:
    """Token buckets of size `burst` that refill by `per_s` tokens per second."""

    def __init__(self, *, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._buckets: LRUCache[Hashable, _Bucket] = LRUCache(MAX_KEYS)

    def take(self, key: Hashable, tokens: float = 1.0, *, at_s: float) -> int | None:
        """Take tokens for the key at that time; None if there are too few.

        Returns: how often the key was refused since it was last given some; None: it has not as
        many, and none is taken.
        """
        bucket = self._buckets.setdefault(key, _Bucket(self._burst, at_s))
        if at_s > bucket.at_s:
            filled = bucket.tokens + (at_s - bucket.at_s) * self._per_s
            bucket.tokens, bucket.at_s = min(self._burst, filled), at_s
        if tokens > bucket.tokens:
            bucket.refused += 1
            return None
        bucket.tokens -= tokens
        refused, bucket.refused = bucket.refused, 0
        return refused

    def give_back(self, key: Hashable, tokens: float) -> None:
        """Return tokens that were not needed."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.tokens = min(self._burst, bucket.tokens + tokens)
