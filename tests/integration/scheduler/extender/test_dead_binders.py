"""/bind when another binder died with the pod's binding on its way, or its answer was lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesPodApi
from hamicommon import events
from hamicommon.errors import Unavailable

from tests.integration.scheduler.world import World
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


async def test_a_binder_that_dies_half_way_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await first.filter(pod, "n1")
    never, reached = asyncio.Event(), asyncio.Event()
    really_bind = KubernetesPodApi.bind

    async def hang(self: KubernetesPodApi, *args: str, **kwargs: str) -> None:
        reached.set()
        await never.wait()

    monkeypatch.setattr(KubernetesPodApi, "bind", hang)
    dying = asyncio.create_task(first.bind(pod, "n1"))
    await world.until(pod, "binding")

    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()  # the lock and the grant on the bus are its
    dying.cancel()
    monkeypatch.setattr(KubernetesPodApi, "bind", really_bind)

    assert await second.bind(pod, "n1") == ""
    await world.until(pod, "bound")


async def test_a_pod_that_the_slow_binder_bound_first_is_bound_for_the_one_that_took_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await first.filter(pod, "n1")
    sent, slow = asyncio.Event(), asyncio.Event()
    really_bind = KubernetesPodApi.bind
    grants: list[str] = []

    async def bind(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        grants.append(kwargs["annotations"]["hami.io/grant"])
        if len(grants) == 1:
            sent.set()
            await slow.wait()
        else:
            slow.set()
            await world.until(pod, "bound")
        await really_bind(self, *args, **kwargs)

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)
    binding = asyncio.create_task(first.bind(pod, "n1"))
    await sent.wait()

    assert await second.bind(pod, "n1") == ""
    assert await binding == ""
    await world.until(pod, "bound")
    # The token of the first counts no more, so neither does the grant that came with its binding.
    assert (await world.read(pod))["metadata"]["annotations"]["hami.io/grant"] == grants[1]


async def test_a_pod_that_went_after_its_lost_answer_keeps_its_slice_until_its_node_reports(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    really_bind = KubernetesPodApi.bind

    async def bind(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        await really_bind(self, *args, **kwargs)
        await world.delete(pod)
        raise Unavailable("connection reset")

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert "its node shows whether it runs" in await replica.bind(pod, "n1")
    releasing = await world.until(pod, "releasing")
    assert (await world.used(card))[0] == 1

    await world.publish_report(events.PodGone, releasing)
    await world.until(pod, "released")


async def test_a_pod_that_a_dead_binder_bound_and_that_went_keeps_its_slice_until_its_node_reports(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await first.filter(pod, "n1")
    really_bind = KubernetesPodApi.bind
    never, claimed = asyncio.Event(), asyncio.Event()

    async def die(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        claimed.set()
        await never.wait()

    monkeypatch.setattr(KubernetesPodApi, "bind", die)
    dying = asyncio.create_task(first.bind(pod, "n1"))
    async with asyncio.timeout(PATIENCE_S):
        await claimed.wait()
    dying.cancel()

    async def bind(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        # What the first had sent arrives, and the pod is gone before the second's is there.
        await really_bind(self, *args, **kwargs)
        await world.delete(pod)
        await really_bind(self, *args, **kwargs)

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert "its node shows whether it had been bound" in await second.bind(pod, "n1")
    releasing = await world.until(pod, "releasing")
    assert (await world.used(card))[0] == 1

    await world.publish_report(events.PodGone, releasing)
    await world.until(pod, "released")
