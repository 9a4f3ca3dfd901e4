"""Type aliases for decoded JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""One object, as the API server sends it."""

JsonMapping = Mapping[str, Any]
"""One object that is only read."""
