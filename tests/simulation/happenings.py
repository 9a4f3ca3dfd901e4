"""Actions of a script on the world: one method per kind, true when it had an object."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from hamicommon.k8s.types import Json

from tests.simulation import fake_time
from tests.simulation.cluster.agent import RESOURCE
from tests.simulation.cluster.api_server import now_text
from tests.simulation.scripts import Action
from tests.simulation.world import World


class Happenings:
    """The hands of a script."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = asyncio.get_running_loop()

    def act(self, action: Action) -> None:
        """Carries out one action; one that has no object is passed over."""
        work: Callable[[Action], bool] = getattr(self, f"_do_{action.kind}")
        if work(action):
            self._world.note(str(action))

    def _do_arrive(self, action: Action) -> bool:
        self._world.api.put("pods", pod_object(action, managed=True))
        return True

    def _do_unknown(self, action: Action) -> bool:
        """A pod that was made past the scheduler, with forged annotations."""
        pod = pod_object(action, managed=False)
        pod["spec"]["nodeName"] = self._a_node(action)
        self._world.api.put("pods", pod)
        return True

    def _do_delete(self, action: Action) -> bool:
        return self._world.delete(self._a_pod(action), force=False)

    def _do_force_delete(self, action: Action) -> bool:
        return self._world.delete(self._a_pod(action), force=True)

    def _do_finish(self, action: Action) -> bool:
        uid = self._a_pod(action)
        return any(kubelet.finish(uid) for kubelet in self._world.kubelets.values())

    def _do_restart(self, action: Action) -> bool:
        uid = self._a_pod(action)
        return any(kubelet.restart(uid) for kubelet in self._world.kubelets.values())

    def _do_weather(self, action: Action) -> bool:
        self._world.weather.turn(
            action.target, action.how, action.share, self._loop.time() + action.seconds
        )
        return True

    def _do_bus_away(self, action: Action) -> bool:
        self._world.hub.away_until = self._loop.time() + action.seconds
        return True

    def _do_locks_lost(self, action: Action) -> bool:
        del action
        self._world.redis.lose()
        return True

    def _do_clock_jump(self, action: Action) -> bool:
        fake_time.jump(action.seconds)
        return True

    def _do_kill_replica(self, action: Action) -> bool:
        name = self._a_replica(action)
        if name not in self._world.replicas:
            return False
        self._world.errand(self._world.replica_away(name, action.seconds))
        return True

    def _do_stop_replica(self, action: Action) -> bool:
        replica = self._world.replicas.get(self._a_replica(action))
        if replica is None:
            return False
        replica.process.stop()
        self._loop.call_later(action.seconds, replica.process.go_on)
        return True

    def _do_kill_agent(self, action: Action) -> bool:
        node = self._a_node(action)
        if node not in self._world.agents:
            return False
        self._world.errand(self._world.agent_away(node, action.seconds))
        return True

    def _do_sick_card(self, action: Action) -> bool:
        node = self._a_node(action)
        card = self._world.cards[node].devices()[action.pick % self._world.scenario.cards]
        self._world.cards[node].replace(replace(card, healthy=False, health_reason="XID 79"))
        self._loop.call_later(action.seconds, self._world.cards[node].replace, card)
        return True

    def _do_node_lost(self, action: Action) -> bool:
        node = self._a_node(action)
        if not self._world.kubelets[node].up:
            return False
        self._world.errand(self._world.node_away(node, action.seconds))
        return True

    def _a_node(self, action: Action) -> str:
        nodes = self._world.scenario.nodes
        return nodes[action.pick % len(nodes)]

    def _a_replica(self, action: Action) -> str:
        return f"scheduler-{action.pick % self._world.scenario.replicas}"

    def _a_pod(self, action: Action) -> str:
        pods = self._world.api.all("pods")
        return str(pods[action.pick % len(pods)]["metadata"]["uid"]) if pods else ""


def pod_object(action: Action, *, managed: bool) -> Json:
    """A pod as its user writes it."""
    name = f"p{action.number}"
    return {
        "metadata": {
            "name": name,
            "namespace": action.target or "default",
            "uid": f"uid-{name}",
            "creationTimestamp": now_text(),
            "annotations": {} if managed else _forge_annotations(action),
        },
        "spec": {
            "schedulerName": "hami-scheduler" if managed else "default-scheduler",
            "initContainers": [_container(f"i{n}", *c) for n, c in enumerate(action.inits)],
            "containers": [_container(f"c{n}", *c) for n, c in enumerate(action.apps)],
        },
        "status": {"phase": "Pending"},
    }


def _container(name: str, count: int, memory_mib: int, core_percent: int) -> Json:
    limits = {
        RESOURCE: str(count),
        "nvidia.com/gpumem": str(memory_mib),
        "nvidia.com/gpucores": str(core_percent),
    }
    return {"name": name, "resources": {"limits": limits}}


def _forge_annotations(action: Action) -> dict[str, str]:
    return {
        "hami.io/vgpu-node": "n0",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1000,10:;",
        "hami.io/grant": f"eyJ2ZXJzaW9uIjoxfQ.{action.number:064d}",
    }
