"""Changes of a request with which the pod would have fitted: amounts, restrictions, policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.explain.circumstances import Circumstances, Counterfactual
from hamicommon.explain.wording import selection


def request_changes(
    request: PodRequest, about: Circumstances, fits: Callable[[PodRequest], bool]
) -> Iterator[Counterfactual]:
    """Each change of the request that alone would have sufficed."""
    for index, container in enumerate(request.containers):
        for number, wanted in enumerate(container.requests):
            change = partial(_with_request, request, index, number)
            names = dict(about.names).get(wanted.vendor, {})
            for found in _amounts(wanted, change, fits, names):
                several = sum(len(c.requests) for c in request.containers) > 1
                text = f"{found.text} in container {container.name}" if several else found.text
                yield replace(found, container=container.name, text=text)
    yield from _selections(request, fits)
    yield from _policies(request, fits)


def _with_request(
    request: PodRequest, container: int, number: int, wanted: DeviceRequest
) -> PodRequest:
    containers = list(request.containers)
    requests = list(containers[container].requests)
    requests[number] = wanted
    containers[container] = replace(containers[container], requests=tuple(requests))
    return replace(request, containers=tuple(containers))


def _amounts(
    wanted: DeviceRequest,
    change: Callable[[DeviceRequest], PodRequest],
    fits: Callable[[PodRequest], bool],
    names: Mapping[str, str],
) -> Iterator[Counterfactual]:
    """The largest memory, cores and count that would have fitted, each alone."""

    def with_field(field: str, amount: int) -> bool:
        asked = replace(wanted, **{field: amount})  # type: ignore[arg-type]  # one of its amounts
        return fits(change(asked))

    if wanted.memory_mib > 0:
        name, field, top, unit = names.get("memory", "memory"), "memory_mib", 0, "MiB"
        top = wanted.memory_mib
    else:
        name, field, unit = names.get("percent", "memory percentage"), "memory_percent", "percent"
        top = wanted.memory_percent or 0
    if (most := largest(partial(with_field, field), 1, top - 1)) is not None:
        text = f"fits if {name} <= {most}" + (" MiB" if unit == "MiB" else "")
        yield Counterfactual(kind="memory", text=text, limit=most, unit=unit)
    if wanted.core_percent > 0:
        top = min(wanted.core_percent, 100)
        most = largest(partial(with_field, "core_percent"), 0, top - 1)
        if most is not None:
            text = f"fits if {names.get('core', 'cores')} <= {most}"
            yield Counterfactual(kind="cores", text=text, limit=most, unit="percent")
    if (most := largest(partial(with_field, "count"), 1, wanted.count - 1)) is not None:
        text = f"fits if {names.get('count', 'the number of cards')} <= {most}"
        yield Counterfactual(kind="count", text=text, limit=most, unit="cards")


def largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest amount in low..high that fits, or None; less always fits where more does."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _selections(
    request: PodRequest, fits: Callable[[PodRequest], bool]
) -> Iterator[Counterfactual]:
    """Each restriction of the annotations dropped alone, and all of them where only that helps."""
    for vendor, chosen in request.selections.items():
        restrictions = selection(chosen)
        found = False
        for restriction, phrase in restrictions:
            freer = replace(chosen, **{restriction: getattr(Selection(), restriction)})
            if fits(_with_selection(request, vendor, freer)):
                found = True
                yield Counterfactual(kind="selection", text=f"fits without {phrase}")
        freest = Selection(traits=chosen.traits)
        if len(restrictions) > 1 and not found and fits(_with_selection(request, vendor, freest)):
            every = " and ".join(phrase for _, phrase in restrictions)
            yield Counterfactual(kind="selection", text=f"fits without {every}")


def _with_selection(request: PodRequest, vendor: str, chosen: Selection) -> PodRequest:
    return replace(request, selections={**request.selections, vendor: chosen})


def _policies(request: PodRequest, fits: Callable[[PodRequest], bool]) -> Iterator[Counterfactual]:
    policy = request.policy
    if "mutex" in policy.gpu:
        gpu = tuple(key for key in policy.gpu if key != "mutex") or ("spread",)
        if fits(replace(request, policy=replace(policy, gpu=gpu))):
            yield Counterfactual(kind="policy", text="fits without card policy mutex")
