"""Settings that can't go together are refused at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hami_scheduler.settings import Settings
from hamicommon.settings import NatsSettings, PostgresSettings, RedisSettings
from pydantic import ValidationError

FILES: dict[str, Any] = {"tls_cert_file": Path("crt"), "tls_key_file": Path("key")}


def settings(**changes: Any) -> Settings:
    return Settings(
        grant_key_file=Path("grant.key"),
        postgres=PostgresSettings(dsn="postgresql://ledger"),
        redis=RedisSettings(url="redis://locks"),
        nats=NatsSettings(url="nats://bus"),
        **changes,
    )


@pytest.mark.parametrize("bind", [":9443", "0.0.0.0:9443", "[::]:9443", "10.0.0.7:9443"])
@pytest.mark.parametrize(
    "more", [{}, {"operator_bind": ":9444", **FILES}], ids=["alone", "beside the operators' port"]
)
def test_bind_is_not_served_to_anybody_on_the_network(bind: str, more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="where any client could call /bind"):
        settings(http_bind=bind, **more)


@pytest.mark.parametrize(
    "changes",
    [
        {"http_bind": "127.0.0.1:9443"},
        {"http_bind": "localhost:9443"},
        {"http_bind": "127.0.0.1:9443", "operator_bind": ":9444", **FILES},
        {"http_bind": ":9443", "published_locally": True},
    ],
    ids=["loopback", "localhost", "tokens", "compose"],
)
def test_it_is_served_on_this_machine(
    changes: dict[str, Any],
) -> None:
    assert settings(**changes).http_bind == changes["http_bind"]
