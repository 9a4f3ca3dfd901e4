"""The pages of the real service on a real PostgreSQL, and how a test reads one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from hami_metrics.bootstrap import MetricsApp, open_app
from hami_metrics.settings import Settings
from hamicommon.settings import NatsSettings, PostgresSettings
from pydantic import SecretStr

from tests.waiting import PATIENCE_S, eventually


def settings(postgres_dsn: str, nats_url: str, **changes: Any) -> Settings:
    given: dict[str, Any] = {"pages_bind": "127.0.0.1:0", **changes}
    return Settings(
        http_bind="127.0.0.1:0",
        postgres=PostgresSettings(dsn=SecretStr(postgres_dsn)),
        nats=NatsSettings(url=nats_url),
        **given,
    )


@asynccontextmanager
async def pages(
    postgres_dsn: str, nats_url: str, **changes: Any
) -> AsyncIterator[tuple[MetricsApp, httpx.AsyncClient]]:
    async with (
        open_app(settings(postgres_dsn, nats_url, **changes)) as app,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{app.pages_port}", timeout=PATIENCE_S
        ) as http,
    ):
        yield app, http


async def text(http: httpx.AsyncClient, path: str, status: int = 200) -> str:
    """The page. On a machine that is busy a statement may meet its time-out: it is asked again."""
    answer = await http.get(path, follow_redirects=True)
    if answer.status_code == 503 != status:

        async def is_available() -> bool:
            nonlocal answer
            answer = await http.get(path, follow_redirects=True)
            return answer.status_code != 503

        await eventually(is_available, f"{path} of a ledger that answers in time")
    assert answer.status_code == status, answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    return answer.text
