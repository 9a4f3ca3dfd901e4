"""The pages for a user who may see only one namespace."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.pages.app import create_pages
from hami_metrics.pages.entry import PagesNeeds
from hamicommon.access.checks import ApiCaller, Right
from hamicommon.ledger.database import open_database
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr


class Reviews:
    """`ann` may look and list the pods of nlp."""

    async def whose(self, token: str) -> ApiCaller:
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        ann = ("get questions.hami.io", "list pods in namespace nlp")
        return caller.username == "ann" and str(right) in ann


@asynccontextmanager
async def open_reviewed_pages(
    postgres_dsn: str, events_connected: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[Any, tuple[str, ...]]]:
    """The application of the pages that checks its users, and its paths."""
    async with open_database(
        PostgresSettings(dsn=SecretStr(postgres_dsn)), application="test"
    ) as ledger:
        app, paths, close = create_pages(
            PagesNeeds(
                ledger=ledger,
                reviews=Reviews(),
                proxy=False,
                show=ShowOwners.SIZES,
                secret="s",
                clock=lambda: datetime.now(UTC),
                bulkhead=Bulkhead(),
                events_connected=events_connected,
            )
        )
        try:
            yield app, paths
        finally:
            await close()


def check_names(shown: str, secrets: set[str], where: str) -> None:
    names = set(re.findall(r"(\w+)/(?:train|infer|batch|notebook|waits)-", shown))
    assert names <= {"nlp"}, where
    assert not [uid for uid in secrets if uid in shown], where
