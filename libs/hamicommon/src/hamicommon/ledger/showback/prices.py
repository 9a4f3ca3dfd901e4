"""What a card-hour costs, by the type of the card."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hamicommon.errors import InvalidRequest


class PriceList(BaseModel):
    """Prices, as an operator writes them in JSON; amounts are texts, so that they are exact.

    `{"version": "v3", "currency": "EUR", "card_hour": {"NVIDIA A100": "2.50"}}`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str = Field(min_length=1, max_length=64)
    currency: str = Field(pattern="^[A-Z]{3}$")
    """ISO 4217."""
    card_hour: dict[str, Decimal] = Field(default_factory=dict)
    """By type; a type that is not here has no price, which is not a price of 0."""

    def of(self, card_type: str) -> Decimal | None:
        """What an hour of one whole card costs; None: unknown."""
        return self.card_hour.get(card_type)


def read_prices(path: Path) -> PriceList:
    """Raises: InvalidRequest with what is wrong with the file."""
    try:
        prices = PriceList.model_validate(orjson.loads(path.read_bytes()))
    except ValidationError as exc:
        where = ".".join(map(str, exc.errors()[0]["loc"]))
        raise InvalidRequest(f"price list {path}: {where}: {exc.errors()[0]['msg']}") from None
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"price list {path} can't be read: {exc}") from exc
    for name, price in prices.card_hour.items():
        if not price.is_finite() or price < 0:
            raise InvalidRequest(f"price list {path}: card_hour.{name}: {price} is no price")
    return prices
