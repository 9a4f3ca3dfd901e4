"""The end of a history: the faults are over, and the promises about that state have to hold."""

import asyncio

from tests.simulation import fake_time
from tests.simulation.cluster.replica import SETTINGS
from tests.simulation.model import Broken
from tests.simulation.world import World

SETTLED_WITHIN_S = 30.0
"""Simulated seconds of promise LIVE-2; a binding without a result ends by then too."""
COMPARED_WITHIN_S = SETTINGS.reconcile_s + 1.0
"""Time within which every replica compares its view with the ledger."""


async def settle(world: World) -> None:
    """End the faults; check LIVE-1, LIVE-2 after 30 s, and that without pods nothing is held."""
    world.note("calm")
    world.weather.clear()
    world.hub.away_until = 0.0
    await world.errands_done()
    for number in range(world.scenario.replicas):
        world.start_replica(f"scheduler-{number}")
    for replica in world.replicas.values():
        replica.process.go_on()
    for node in world.scenario.nodes:
        world.start_agent(node)
    world.kube_scheduler.open = False
    await asyncio.sleep(SETTLED_WITHIN_S)  # no event: the promise is of that time
    world.note("settled")
    world.model.check_deadlines(fake_time.wall_clock())
    pods = {pod["metadata"]["uid"]: pod for pod in world.api.all("pods")}
    world.model.check_settled(pods, set(world.kube_scheduler.busy))
    for node, kubelet in world.kubelets.items():
        # No pod is moved to a sick card; a container that was given one waits until it is well.
        sick = {card.uuid for card in world.cards[node].devices() if not card.healthy}
        waiting = kubelet.waiting().items()
        world.model.check_started({who: on for who, on in waiting if not sick & set(on)})
    await _until_views_agree(world)
    await _empty(world)


async def _empty(world: World) -> None:
    for pod in world.api.all("pods"):
        world.delete(pod["metadata"]["uid"], force=False)
    await asyncio.sleep(SETTLED_WITHIN_S)  # no event: as above
    world.note("emptied")
    if lasting := [pod["metadata"]["uid"] for pod in world.api.all("pods")]:
        raise Broken(f"LIVE-2: deleted pods do not end: {lasting}")
    world.model.check_empty()
    if world.model.running:
        raise Broken(f"the simulation itself: {world.model.running} runs for ever")


async def _until_views_agree(world: World) -> None:
    """Wait until each replica has compared its view with the ledger once more.

    The active replica follows its own commits; the others only compare. Pauses and kills change
    which one is active.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            _check_views(world)
        except Broken:
            if loop.time() - began > COMPARED_WITHIN_S:
                raise
        else:
            return
        await asyncio.sleep(0.1)  # no event: how often it looks, in the simulation's own time


def _check_views(world: World) -> None:
    for name, replica in world.replicas.items():
        cluster = replica.service.adopter.view.cluster
        for uuid, (node, _device) in world.model.cards.items():
            mine = {s.usage.device.uuid: s.usage for s in cluster.cards(node)}
            if mine.get(uuid) != world.ledger.usage(uuid):
                raise Broken(
                    f"LIVE-2: {name} sees {mine.get(uuid)}, not {world.ledger.usage(uuid)}"
                )
