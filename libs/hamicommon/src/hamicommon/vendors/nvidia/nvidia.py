"""NVIDIA cards: requests, selection, nodes' cards, and admission.

Facts: protocol 1.1. Where HAMi drops a malformed request in silence (and lets the pod through
unfiltered), we refuse it with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hamicommon.device_config import INT32_MAX, NvidiaConfig
from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s import mig
from hamicommon.k8s.annotations import (
    MIG_ALLOCATIONS,
    NODE_LOCK,
    NVIDIA_ALLOCATED,
    NVIDIA_HANDSHAKE,
    NVIDIA_PAIR_SCORES,
    NVIDIA_REGISTER,
    NVIDIA_TO_ALLOCATE,
)
from hamicommon.k8s.pod_annotations import NVIDIA_ANNOTATIONS, NVIDIA_MODE, NVIDIA_NUMA_BIND
from hamicommon.k8s.quantities import INT64_MAX, parse_int
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    AnnotationKeys,
    GuardedVariable,
    MutateResult,
    PlacedPod,
    ResourceNames,
    Vendor,
    set_env,
)
from hamicommon.vendors.nvidia.guarded import (
    CORE_POLICY_ENV,
    NO_CARDS,
    PRIORITY_ENV,
    REQUEST_FOLDER,
    VISIBLE_ENV,
    guarded_variables,
)
from hamicommon.vendors.nvidia.mig import RULES

NAME = "NVIDIA"


@dataclass(frozen=True, slots=True)
class Nvidia(Vendor):
    """Vendor `NVIDIA`."""

    config: NvidiaConfig

    name = NAME
    keys = AnnotationKeys(
        register=NVIDIA_REGISTER,
        handshake=NVIDIA_HANDSHAKE,
        to_allocate=NVIDIA_TO_ALLOCATE,
        allocated=NVIDIA_ALLOCATED,
        use_types="nvidia.com/use-gputype",
        avoid_types="nvidia.com/nouse-gputype",
        use_uuids="nvidia.com/use-gpuuuid",
        avoid_uuids="nvidia.com/nouse-gpuuuid",
        choices=NVIDIA_ANNOTATIONS,
        pair_scores=NVIDIA_PAIR_SCORES,
        lock=NODE_LOCK,
    )
    rules = RULES

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(
            count=self.config.resource_count_name,
            memory=self.config.resource_memory_name,
            memory_percent=self.config.resource_memory_percentage_name,
            core=self.config.resource_core_name,
            priority=self.config.resource_priority_name,
            memory_factor=self.memory_factor,
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return the container's request; None if it requests no card.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.config.resource_count_name)
        if not count:
            return None
        memory = self._memory_mib(container, self.resources)
        percent = self._lenient_percent(container)
        cores = self._cores(container)
        if not memory and percent is None:
            memory = self.config.default_memory
            percent = None if memory else 100
        return DeviceRequest(
            vendor=NAME,
            count=count,
            memory_mib=memory,
            memory_percent=percent,
            core_percent=self.config.default_cores if cores is None else cores,
        )

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Return the cards that the pod's annotations allow."""
        return replace(
            Vendor.select(self, annotations),
            mode=NVIDIA_MODE.read(annotations) or "",
            numa_bind=NVIDIA_NUMA_BIND.read(annotations) or False,
        )

    def pod_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations with the slices (written twice) and the MIG reservations."""
        wire = replace(
            placed, containers=[_with_profiles_cores(c, placed) for c in placed.containers]
        )
        written = Vendor.pod_annotations(self, wire)
        reservations = mig.reservations_of(placed.containers, NAME)
        if reservations:
            written[MIG_ALLOCATIONS] = mig.encode_reservations(reservations)
        return written

    def plugin_alive(self, node: Json) -> bool:
        """Return whether the kubelet lists cards.

        If it never did, whether the handshake is answered.
        """
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        if self.resources.count not in allocatable:
            return Vendor.plugin_alive(self, node)
        return bool(parse_int(allocatable[self.resources.count]))

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Fill in defaults (protocol 1.1, Admission).

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        percent = self._percent(container)
        priority = amounts.find(container, self.config.resource_priority_name, limits_only=True)
        if priority is not None:
            set_env(container, PRIORITY_ENV, str(priority))
        if self.config.gpu_core_policy not in ("", "default"):
            set_env(container, CORE_POLICY_ENV, self.config.gpu_core_policy)
        wants = self._default_count(container)
        wants = self._default_exclusive(container, percent) or wants
        if wants:
            self.parse_request(container)
            if self.config.runtime_class_name and not pod["spec"].get("runtimeClassName"):
                pod["spec"]["runtimeClassName"] = self.config.runtime_class_name
        elif self.config.overwrite_env:
            set_env(container, VISIBLE_ENV, NO_CARDS)
        return MutateResult(
            wants=wants, warnings=self._warnings(container, percent) if wants else ()
        )

    @property
    def guarded_variables(self) -> tuple[GuardedVariable, ...]:
        """Return the guarded variables."""
        return guarded_variables(
            count=self.config.resource_count_name,
            memory=self.config.resource_memory_name,
            cores=self.config.resource_core_name,
            priority=self.config.resource_priority_name,
            core_policy=self.config.gpu_core_policy,
        )

    @property
    def request_folder(self) -> str:
        """Return the folder that the strategy `volume-mounts` uses."""
        return REQUEST_FOLDER

    def hide_cards(self, container: Json) -> None:
        """Hide all cards, as `mutate` does in containers without one."""
        if self.config.overwrite_env and not amounts.asks(
            container, self.config.resource_count_name
        ):
            set_env(container, VISIBLE_ENV, NO_CARDS)

    def _default_count(self, container: Json) -> bool:
        """Set the default number of cards if the limits request any amount.

        Return whether cards are requested.
        """
        config = self.config
        if amounts.find(container, config.resource_count_name, limits_only=True) is not None:
            # HAMi takes a pod over for a count of 0, too, and asks for all cores of no card.
            return amounts.asks(container, config.resource_count_name, limits_only=True)
        others = (
            config.resource_core_name,
            config.resource_memory_name,
            config.resource_memory_percentage_name,
        )
        asked = any(amounts.find(container, x, limits_only=True) is not None for x in others)
        if not asked or config.default_gpu_num <= 0:
            return False
        container["resources"]["limits"][config.resource_count_name] = str(config.default_gpu_num)
        return True

    def _default_exclusive(self, container: Json, percent: int | None) -> bool:
        """Set all cores if a whole card is requested without cores.

        Return whether they were set.
        """
        config = self.config
        if not amounts.asks(container, config.resource_count_name):
            return False
        if amounts.find(container, config.resource_core_name) is not None:
            return False
        if percent is not None:
            exclusive = percent == 100
        else:
            exclusive = amounts.find(container, config.resource_memory_name) is None
        if exclusive:
            resources = container["resources"]
            resources["limits"] = (resources.get("limits") or {}) | {
                config.resource_core_name: "100"
            }
        return exclusive

    def _warnings(self, container: Json, percent: int | None) -> tuple[str, ...]:
        config = self.config
        where = f"container {container.get('name', '')!r}: "
        found = []
        if percent == 0:
            name = config.resource_memory_percentage_name
            found.append(
                f"{where}{name} 0 means not given; without {config.resource_memory_name} "
                "the default memory is granted"
            )
        cores = self._cores(container)
        if cores is not None and cores > 100:
            found.append(
                f"{where}{config.resource_core_name} {cores} is more than one card has "
                "and counts as 100"
            )
        return tuple(found)

    def _percent(self, container: Json, *, low: int = 0, top: int = 100) -> int | None:
        wanted = "a whole number from 1 to 100, the share of a card's memory"
        name = self.config.resource_memory_percentage_name
        return amounts.whole(container, name, low=low, top=top, wanted=wanted)

    def _lenient_percent(self, container: Json) -> int | None:
        """Return the percentage as HAMi's scheduler reads it without the webhook (protocol 1.1).

        More than 100 is all of the card, and nothing or less is none given.
        """
        percent = self._percent(container, low=-INT64_MAX, top=INT64_MAX)
        return min(percent, 100) if percent and percent > 0 else None

    def _cores(self, container: Json) -> int | None:
        wanted = "a whole number from 0 to 100, the share of a card's cores"
        name = self.config.resource_core_name
        return amounts.whole(container, name, top=INT32_MAX, wanted=wanted)


def _with_profiles_cores(container: ContainerGrant, placed: PlacedPod) -> ContainerGrant:
    """Return the container with the cores of the whole profile on MIG slices, as in HAMi.

    The ledger may hold less for the last slice of a card (see `mig.py`).
    """
    shares = []
    for share in container.shares:
        part, card = mig.MigSlice.from_detail(share.detail), placed.cards.get(share.uuid)
        profiles = {p.name: p for p in card.mig_profiles} if card else {}
        if part is not None and part.profile in profiles:
            share = replace(share, core_percent=profiles[part.profile].core_percent)
        shares.append(share)
    return replace(container, shares=tuple(shares))
