"""Types of Kubernetes objects as they are decoded."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""One object as the API server sends it."""
