"""A plain-loop model of the engine, written from protocol sheet 1.0.4, 1.1 and 4.6 alone.

It is slow and obvious on purpose: the engine must give the same verdicts, cards and reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import DeviceRequest, PodRequest, Policy, Selection

Pick = tuple[str, int, int]
"""uuid, MiB, percent."""
PairScores = Mapping[str, Mapping[str, int]]


@dataclass
class Card:
    """A card whose usage changes while a pod is fitted."""

    usage: DeviceUsage
    slots: int = 0
    memory: int = 0
    core: int = 0

    def __post_init__(self) -> None:
        self.slots = self.usage.used_slots
        self.memory = self.usage.used_memory_mib
        self.core = self.usage.used_core_percent


@dataclass
class Answer:
    """What one node says to a pod: the picks of every container, or a reason."""

    picks: list[list[Pick]] = field(default_factory=list)
    reason: str = ""


def answer(request: PodRequest, usages: Sequence[DeviceUsage], pairs: PairScores) -> Answer:
    """One node's answer to a pod."""
    if not usages:
        return Answer(reason="node unregistered")
    app = [Card(usage) for usage in usages]
    result = Answer()
    for container in request.containers:
        cards = app if container.role == "app" else [Card(usage) for usage in usages]
        picks: list[Pick] = []
        for wanted in container.requests:
            selection = request.selections.get(wanted.vendor, Selection())
            found, reason = fit(wanted, cards, selection, request.policy, pairs)
            if reason:
                return Answer(reason=reason)
            for card, memory, core in found:
                card.slots += 1
                card.memory += memory
                card.core += core
                picks.append((card.usage.device.uuid, memory, core))
        result.picks.append(picks)
    return result


def node_score(usages: Sequence[DeviceUsage]) -> np.float32:
    """How used a node is, 0 to 30."""
    total = np.float32(0)
    for used, capacity in (
        (sum(u.used_slots for u in usages), sum(u.device.slots for u in usages)),
        (sum(u.used_core_percent for u in usages), sum(u.device.core_percent for u in usages)),
        (sum(u.used_memory_mib for u in usages), sum(u.device.memory_mib for u in usages)),
    ):
        if capacity == 0:
            return np.float32(0)
        total += np.float32(used) / np.float32(capacity)
    return np.float32(10) * total


def choose(
    names: Sequence[NodeName], scores: Mapping[NodeName, np.float32], policy: str
) -> NodeName:
    """The best of the nodes that fit; the first by name among equals."""
    sign = 1 if policy == "spread" else -1
    return min(names, key=lambda name: (sign * scores[name], name))


def fit(
    wanted: DeviceRequest,
    cards: list[Card],
    selection: Selection,
    policy: Policy,
    pairs: PairScores,
) -> tuple[list[tuple[Card, int, int]], str]:
    """The cards for one request, or the reason; leaves `cards` in the order in which it tried."""
    sort(cards, wanted, policy, selection.numa_bind)
    mine = [card for card in cards if card.usage.device.vendor == wanted.vendor]
    if wanted.count > len(mine):
        return [], "NodeInsufficientDevice"
    topology = "topology-aware" in policy.gpu
    reasons: Counter[str] = Counter()
    picks: list[tuple[Card, int, int]] = []
    group: int | None = None
    for card in reversed(mine):
        numa = card.usage.device.numa
        early = why_before_numa(card, selection)
        if early:
            reasons[early] += 1
            continue
        if selection.numa_bind and numa != group:
            if topology and len(picks) >= wanted.count:
                break
            if not topology:
                reasons["NumaNotFit"] += len(picks)
            picks, group = [], numa
        core = min(wanted.core_percent, 100)
        memory = wanted.memory_mib_on(card.usage.device.memory_mib)
        late = why(card, selection, policy, memory, core)
        if late:
            reasons[late] += 1
            continue
        picks.append((card, memory, core))
        if len(picks) == wanted.count and not topology:
            return picks, ""
    if len(picks) >= wanted.count:
        return connected(picks, wanted.count, pairs), ""
    reasons["AllocatedCardsInsufficientRequest"] = len(picks)
    texts = sorted(f"{count}/{len(mine)} {word}" for word, count in reasons.items() if count)
    return [], ", ".join(texts)


def why_before_numa(card: Card, selection: Selection) -> str:
    """The rules before the NUMA grouping."""
    device = card.usage.device
    if not device.healthy:
        return "CardNotHealth"
    if card.usage.cordoned:
        return "CardCordoned"
    name = device.type.upper()
    use = [entry.upper() for entry in selection.use_types]
    avoid = [entry.upper() for entry in selection.avoid_types]
    if use and not any(entry and entry in name for entry in use):
        return "CardTypeMismatch"
    if any(entry and entry in name for entry in avoid):
        return "CardTypeMismatch"
    if selection.mode and device.mode not in selection.mode:
        return "CardTypeMismatch"
    return ""


def why(card: Card, selection: Selection, policy: Policy, memory: int, core: int) -> str:
    """The rules after the NUMA grouping."""
    device = card.usage.device
    if selection.use_uuids and device.uuid not in selection.use_uuids:
        return "CardUuidMismatch"
    if device.uuid in selection.avoid_uuids:
        return "CardUuidMismatch"
    if device.slots <= card.slots:
        return "CardTimeSlicingExhausted"
    if "mutex" in policy.gpu and card.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    if device.memory_mib - card.memory < memory:
        return "CardInsufficientMemory"
    if device.core_percent - card.core < core:
        return "CardInsufficientCore"
    if device.core_percent == 100 and core == 100 and card.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    if device.core_percent != 0 and card.core == device.core_percent and core == 0:
        return "CardComputeUnitsExhausted"
    return ""


def connected(
    picks: list[tuple[Card, int, int]], count: int, pairs: PairScores
) -> list[tuple[Card, int, int]]:
    """The topology choice."""
    if len(picks) == count:
        return picks

    def score(a: Card, b: Card) -> int:
        return pairs.get(a.usage.device.uuid, {}).get(b.usage.device.uuid, 0)

    if count == 1:
        return [min(picks, key=lambda p: sum(score(p[0], q[0]) for q in picks if q is not p))]
    return list(
        max(
            combinations(picks, count),
            key=lambda chosen: sum(score(a[0], b[0]) for a, b in combinations(chosen, 2)),
        )
    )


def sort(cards: list[Card], wanted: DeviceRequest, policy: Policy, numa_bind: bool) -> None:
    """Sorts in place; the last card is the most preferred."""
    scores = {id(card): card_score(card, wanted, policy) for card in cards}

    def score(card: Card) -> np.float32:
        return scores[id(card)]

    def numa(card: Card) -> int:
        return card.usage.device.numa

    if len(policy.gpu) == 1 and policy.gpu[0] != "numa":
        if policy.gpu[0] == "mutex":
            cards.sort(key=lambda c: (-c.slots, numa(c)))
        elif policy.gpu[0] == "binpack":
            cards.sort(key=lambda c: (-numa(c), score(c)) if numa_bind else (score(c), numa(c)))
        else:
            cards.sort(key=lambda c: (numa(c), -score(c)) if numa_bind else (-score(c), numa(c)))
        return
    chain = [word for word in policy.gpu if word in ("binpack", "spread", "numa")] or ["spread"]
    if numa_bind and chain[0] != "numa":
        chain = ["numa", *chain]
    values = {"binpack": score, "spread": lambda c: -score(c), "numa": numa}
    cards.sort(key=lambda c: (*(values[word](c) for word in chain), c.usage.device.index))


def card_score(card: Card, wanted: DeviceRequest, policy: Policy) -> np.float32:
    """How used a card is."""
    device = card.usage.device
    if not (device.slots and device.core_percent and device.memory_mib):
        return np.float32(0)
    slots, core, memory = card.slots, card.core, card.memory
    if device.type == wanted.vendor:
        slots += 1
        core += wanted.core_percent
        percent = wanted.memory_percent
        memory += device.memory_mib * percent // 100 if percent else wanted.memory_mib
    weights = policy.weights
    total = np.float32(0)
    total += np.float32(weights.slot * slots) / np.float32(device.slots)
    total += np.float32(weights.core * core) / np.float32(device.core_percent)
    total += np.float32(weights.memory * memory) / np.float32(device.memory_mib)
    return np.float32(10) * total
