import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.storage.journal import Journal
from kubelocal.apiserver.storage.objects import StoredObject
from kubelocal.apiserver.storage.store import ObjectStore, Transaction

Work = Callable[[Transaction], StoredObject]


@asynccontextmanager
async def open_store(folder: Path, compact_every: int = 0) -> AsyncIterator[ObjectStore]:
    journal = Journal(folder)
    store = ObjectStore(journal, compact_every=compact_every)
    await store.open()
    writer = asyncio.create_task(store.write_forever())
    try:
        yield store
    finally:
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writer
        await journal.close()


def put(name: str, **extra: Any) -> Work:
    body = {"metadata": {"name": name, "namespace": "d", "uid": f"u-{name}"}, **extra}
    return lambda transaction: transaction.put("configmaps", orjson.loads(orjson.dumps(body)))


def drop(name: str) -> Work:
    def work(transaction: Transaction) -> StoredObject:
        stored = transaction.get("configmaps", "d", name)
        assert stored is not None
        return transaction.delete("configmaps", stored.load())

    return work


async def test_objects_and_the_version_come_back_after_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await store.transact(put("a", data={"x": "1"}))
        await store.transact(put("b"))
        await store.transact(drop("b"))
        version = store.version
    async with open_store(tmp_path) as store:
        assert store.version == version, "the version of the deletion must not come again"
        (only,) = store.items("configmaps")
        assert only.load()["data"] == {"x": "1"}
        assert (only.uid, only.key) == ("u-a", ("configmaps", "d", "a"))
        assert (await store.transact(put("c"))).version == version + 1


async def test_a_watch_from_before_a_restart_has_expired(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        first = await store.transact(put("a"))
        await store.transact(put("b"))
    async with open_store(tmp_path) as store:
        history = store.histories["configmaps"]
        assert history.after(store.version) == []
        with pytest.raises(ApiError, match="too old resource version") as caught:
            history.after(first.version)
        assert caught.value.code == 410


async def test_a_failed_writer_leaves_nothing_and_harms_no_other(tmp_path: Path) -> None:
    def fails(transaction: Transaction) -> StoredObject:
        put("bad")(transaction)
        raise ApiError(409, "Conflict", "no")

    async with open_store(tmp_path) as store:
        results = await asyncio.gather(
            store.transact(put("a")),
            store.transact(fails),
            store.transact(put("b")),
            return_exceptions=True,
        )
        assert isinstance(results[1], ApiError)
        assert [stored.name for stored in store.items("configmaps")] == ["a", "b"]
        versions = [change.now.version for change in store.histories["configmaps"].after(100)]
        assert versions == [101, 102]


async def test_writers_in_one_batch_see_each_other(tmp_path: Path) -> None:
    def count(transaction: Transaction) -> StoredObject:
        stored = transaction.get("configmaps", "d", "n")
        number = int(stored.load()["data"]["n"]) if stored else 0
        return put("n", data={"n": str(number + 1)})(transaction)

    async with open_store(tmp_path) as store:
        await asyncio.gather(*(store.transact(count) for _ in range(200)))
        stored = store.get("configmaps", "d", "n")
        assert stored is not None
        assert stored.load()["data"]["n"] == "200"


async def test_changes_hold_what_was_before(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await store.transact(put("a"))
        await store.transact(put("a", data={"x": "1"}))
        await store.transact(drop("a"))
        changes = store.histories["configmaps"].after(100)
        assert [change.kind for change in changes] == ["ADDED", "MODIFIED", "DELETED"]
        assert changes[0].before is None
        assert changes[1].before is changes[0].now
        assert changes[2].now.load()["data"] == {"x": "1"}


async def test_compaction_forgets_the_past_on_demand(tmp_path: Path) -> None:
    async with open_store(tmp_path, compact_every=3) as store:
        first = await store.transact(put("a"))
        await store.transact(put("b"))
        assert len(store.histories["configmaps"].after(first.version)) == 1
        await store.transact(put("c"))
        with pytest.raises(ApiError):
            store.histories["configmaps"].after(first.version)
