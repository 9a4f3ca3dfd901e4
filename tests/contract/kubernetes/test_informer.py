"""The informer over an API server: existing objects, changes, and changes between watches."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hamicommon.errors import Conflict, InvalidRequest, NotFound, Unavailable
from hamicommon.k8s import informer as informers
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.informer import Informer

from tests.contract.kubernetes.servers import client_for, emulator_plan, start_emulation
from tests.processes import start
from tests.waiting import PATIENCE_S

MAPS = "/api/v1/namespaces/default/configmaps"


class Seen:
    """Events in the order in which the informer reported them."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def upsert(self, new: dict[str, Any], old: dict[str, Any] | None) -> None:
        self.events.put_nowait(("new" if old is None else "changed", new["metadata"]["name"]))

    def delete(self, last: dict[str, Any]) -> None:
        self.events.put_nowait(("gone", last["metadata"]["name"]))

    async def next(self) -> tuple[str, str]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.events.get()


def informer(api: KubeApi, seen: Seen) -> Informer:
    return Informer(
        api, MAPS, on_upsert=seen.upsert, on_delete=seen.delete, labelSelector="test=informer"
    )


def a_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"test": "informer"}}}


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with start_emulation(tmp_path_factory.mktemp("informer")) as cluster:
        yield cluster.kubeconfig


async def test_what_exists_is_reported_first_then_each_change_and_deletion(
    kubeconfig: Path,
) -> None:
    seen = Seen()
    async with open_kube_api(kubeconfig) as api:
        await api.create(MAPS, a_map("first"))
        watching = asyncio.create_task(informer(api, seen).run())
        assert await seen.next() == ("new", "first")

        await api.create(MAPS, a_map("second"))
        await api.patch(f"{MAPS}/first", {"data": {"a": "1"}})
        await api.delete(f"{MAPS}/second")
        await api.delete(f"{MAPS}/first")

        assert [await seen.next() for _ in range(4)] == [
            ("new", "second"),
            ("changed", "first"),
            ("gone", "second"),
            ("gone", "first"),
        ]
        watching.cancel()


async def test_a_long_list_comes_in_pages_and_only_what_is_kept_is_handed_on(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "PAGE", 2)
    seen = Seen()

    def trim(item: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": item["metadata"]}

    async with open_kube_api(kubeconfig) as api:
        names = [f"page-{number}" for number in range(5)]
        for name in names:
            await api.create(MAPS, a_map(name) | {"data": {"large": "x"}})
        live = informers.Informer(
            api,
            MAPS,
            on_upsert=seen.upsert,
            on_delete=seen.delete,
            trim=trim,
            labelSelector="test=informer",
        )
        watching = asyncio.create_task(live.run())
        assert [await seen.next() for _ in names] == [("new", name) for name in names]

        await api.patch(f"{MAPS}/page-0", {"data": {"large": "y"}})
        assert await seen.next() == ("changed", "page-0")
        await api.delete(f"{MAPS}/page-4")
        assert await seen.next() == ("gone", "page-4")

        assert all(item.keys() == {"metadata"} for item in live.store.values())
        watching.cancel()
        for name in names[:4]:
            await api.delete(f"{MAPS}/{name}")


async def test_an_object_made_again_under_its_name_is_gone_and_new(kubeconfig: Path) -> None:
    seen = Seen()
    async with open_kube_api(kubeconfig) as api:
        await api.create(MAPS, a_map("again"))
        watching = asyncio.create_task(informer(api, seen).run())
        assert await seen.next() == ("new", "again")

        await api.delete(f"{MAPS}/again")
        await api.create(MAPS, a_map("again"))

        assert [await seen.next() for _ in range(2)] == [("gone", "again"), ("new", "again")]
        watching.cancel()
        await api.delete(f"{MAPS}/again")


async def test_changes_made_while_the_server_was_unreachable_are_reported_after_it(
    tmp_path: Path,
) -> None:
    plan = emulator_plan(tmp_path)
    server = start(plan, die_with_parent=True)
    seen = Seen()
    async with open_kube_api(tmp_path / "kubeconfig") as api:
        await api.create(MAPS, a_map("kept"))
        await api.create(MAPS, a_map("lost"))
        live = informer(api, seen)
        watching = asyncio.create_task(live.run())
        assert {await seen.next() for _ in range(2)} == {("new", "kept"), ("new", "lost")}

        server.kill()
        server = start(plan, die_with_parent=True)
        with client_for(plan.url, tmp_path / "ca.crt", "contract-test-token") as client:
            assert client.delete(f"{MAPS}/lost").status_code == 200
            assert client.post(MAPS, json=a_map("made")).status_code == 201

        assert {await seen.next() for _ in range(2)} == {("gone", "lost"), ("new", "made")}
        assert sorted(name for _, name in live.store) == ["kept", "made"]
        watching.cancel()
    server.stop()


async def test_errors_of_the_server_come_from_our_tree(kubeconfig: Path) -> None:
    async with open_kube_api(kubeconfig) as api:
        with pytest.raises(NotFound, match="nowhere"):
            await api.get(f"{MAPS}/nowhere")
        await api.create(MAPS, a_map("twice"))
        with pytest.raises(Conflict):
            await api.create(MAPS, a_map("twice"))
        with pytest.raises(InvalidRequest):
            await api.create(MAPS, {"metadata": {"name": "Not A Name"}})
        await api.delete(f"{MAPS}/twice")


async def test_a_server_that_is_away_is_unavailable_and_named(tmp_path: Path) -> None:
    emulator_plan(tmp_path)

    async with open_kube_api(tmp_path / "kubeconfig", timeout_s=2.0) as api:
        with pytest.raises(Unavailable, match="Kubernetes API: GET /version"):
            await api.get("/version")


async def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nowhere"):
        async with open_kube_api(tmp_path / "nowhere"):
            pass
