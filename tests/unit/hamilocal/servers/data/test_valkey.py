"""Valkey from the wheel."""

from pathlib import Path

import pytest
import redis
from hamilocal.servers.data import valkey
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.processes import running

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("append_only", "kept"), [(True, b"1"), (False, None)])
def test_keys_outlive_a_stop_only_when_asked(
    tmp_path: Path, append_only: bool, kept: bytes | None
) -> None:
    for turn in ("write", "read"):
        plan = valkey.prepare(tmp_path, append_only=append_only)
        with (
            running(plan, die_with_parent=True) as server,
            redis.Redis.from_url(server.value.url) as client,
        ):
            if turn == "write":
                client.set("key", 1)
            else:
                assert client.get("key") == kept


def test_a_password_is_demanded_when_one_was_given(tmp_path: Path) -> None:
    with running(valkey.prepare(tmp_path, password="s3cret"), die_with_parent=True) as server:
        with redis.Redis.from_url(server.value.url) as client:
            assert client.ping()
        unauthenticated = redis.Redis(
            host="127.0.0.1", port=server.value.port, retry=Retry(NoBackoff(), 0)
        )
        with unauthenticated, pytest.raises(redis.AuthenticationError):
            unauthenticated.ping()
