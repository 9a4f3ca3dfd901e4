"""What all payloads have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Payload(BaseModel):
    """Base of all payloads: frozen, and unknown fields are ignored so that readers may be older."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
