"""Reviews of pods as large as the API server passes on, and others' reviews beside them.

What a review costs grows with lists whose length a tenant chooses. Each kind of list is tried at
the API server's largest request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.review import read_review
from hami_webhook.room import RoomThread
from hami_webhook.service import ReviewService
from hamicommon.admission.cache import AdmissionCache
from hamicommon.admission.idle_cards import IdleCards
from hamicommon.admission.mistakes.typos import misspelt
from hamicommon.admission.mistakes.warnings import remarks
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.verdicts import Knowledge
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.vendors.pod_request import (
    MAX_CONTAINERS,
    MAX_CONTAINERS_WITH_CARDS,
    pod_request,
    wants_devices,
)

from tests.unit.devices import a_device
from tests.unit.hamicommon.admission.pods import CORES, GPU, MEM, container, pod, rules
from tests.unit.webhook.reviews import review

LARGEST_BYTES = 3 * 2**20
"""The API server's limit of a request; it answers a longer one itself."""
MAX_CPU_S = 2.5
"""CPU time of one review. Each takes some 0.5 s; before there were limits, up to 70 s."""


def asking(number: int, **more: Any) -> Json:
    return container({GPU: 1, MEM: 1000}, **more) | {"name": f"c{number}"}


def plain(number: int, **more: Any) -> Json:
    return container(**more) | {"name": f"c{number}"}


def annotate_pod(annotations: Json, labels: Json | None = None) -> Json:
    given = pod(asking(0))
    given["metadata"] |= {"annotations": annotations, "labels": labels or {}}
    return given


def variables(name: Callable[[int], str], n: int) -> list[Json]:
    return [{"name": name(i), "value": f"$(A{i})"} for i in range(n)]


def mounts(n: int, path: str) -> list[Json]:
    return [{"name": f"v{i}", "mountPath": f"{path}/{i}"} for i in range(n)]


LISTS: dict[str, Callable[[int], Json]] = {
    "containers with cards": lambda n: pod(*(asking(i) for i in range(n))),
    "containers": lambda n: pod(*(plain(i) for i in range(n))),
    "init containers": lambda n: pod(asking(0), initContainers=[plain(i) for i in range(n)]),
    "ephemeral": lambda n: pod(asking(0), ephemeralContainers=[plain(i) for i in range(n)]),
    "misspelt resources": lambda n: pod(
        container({GPU: 1} | {f"nvidia.com/gpume{i}": 1 for i in range(n)})
    ),
    "misspelt in many containers": lambda n: pod(
        *(container({f"nvdia.com/gp{i}x{j}": 1 for i in range(n // 200 + 1)}) for j in range(200))
    ),
    "misspelt annotations": lambda n: annotate_pod(
        {f"hami.io/scheduler-polcy{i}": "" for i in range(n)}
    ),
    "annotations that choose": lambda n: annotate_pod(
        {f"nvidia.com/use-gpu{i}": "" for i in range(n)}
    ),
    "labels": lambda n: annotate_pod({}, {f"hami.io/{i}": "" for i in range(n)}),
    "chosen cards": lambda n: annotate_pod(
        {"nvidia.com/use-gpuuuid": ",".join(f"GPU-{i}" for i in range(n))}
    ),
    "variables": lambda n: pod(asking(0, env=variables(lambda i: f"A{i}", n))),
    "variables that undo": lambda n: pod(
        asking(0, env=variables(lambda i: "CUDA_DISABLE_CONTROL", n))
    ),
    "mounts that undo": lambda n: pod(
        asking(0, volumeMounts=mounts(n, "/etc/hami")),
        volumes=[{"name": f"v{i}", "emptyDir": {}} for i in range(n)],
    ),
    "host paths": lambda n: pod(
        asking(0, volumeMounts=mounts(n, "/x")),
        volumes=[{"name": f"v{i}", "hostPath": {"path": f"/dev/nvidia{i}"}} for i in range(n)],
    ),
    "capabilities": lambda n: pod(
        asking(0, securityContext={"capabilities": {"add": ["SYS_ADMIN"] * n}})
    ),
    "claims": lambda n: pod(
        asking(0), resourceClaims=[{"name": f"r{i}", "resourceClaimName": ""} for i in range(n)]
    ),
}


def largest(of: Callable[[int], Json]) -> Json:
    """The pod with the longest list that a request has room for, or nearly."""
    short, longer = (len(json.dumps(of(length))) for length in (20_000, 30_000))
    # Names grow by a digit or two.
    return of(int(0.9 * LARGEST_BYTES / ((longer - short) / 10_000)))


def card(node: int, index: int) -> GpuDevice:
    return a_device(f"GPU-{node}-{index}", index=index, memory_mib=81920 - node % 4)


@pytest.fixture
def cards() -> IdleCards:
    found = IdleCards(rules().vendors)
    for node in range(20):
        found.set_node(NodeName(f"n{node}"), [card(node, index) for index in range(8)])
    return found


def service(cards: IdleCards, ask: RoomThread | None = None) -> ReviewService:
    admission = AdmissionCache(rules(), ask.ask) if ask is not None else AdmissionCache(rules())
    known = Knowledge(cards=cards, quotas={})
    return ReviewService(admission, WebhookInstruments(), "closed", knowledge=lambda: known)


async def review_pod(reviews: ReviewService, given: Json) -> Json:
    body = review(given, userInfo={"username": "eve"})
    answer: Json = (await reviews.answer(read_review(json.dumps(body).encode())))["response"]
    return answer


@pytest.mark.parametrize("kind", LISTS)
async def test_no_list_of_a_pod_keeps_admission_or_filter_busy(kind: str, cards: IdleCards) -> None:
    given, vendors = largest(LISTS[kind]), rules().vendors
    assert len(json.dumps(given)) < LARGEST_BYTES
    began_s = time.process_time()
    answer = await review_pod(service(cards), given)

    assert time.process_time() - began_s < MAX_CPU_S
    assert len(json.dumps(answer)) < LARGEST_BYTES

    # /filter and explain read pods that bypassed the webhook, too.
    began_s = time.process_time()
    wants_devices(given, vendors)
    Guard.of(vendors, TamperingPolicy()).at_filter(given)
    misspelt(given, vendors)
    remarks(given, vendors)
    with contextlib.suppress(InvalidRequest):
        pod_request(given, vendors)

    assert time.process_time() - began_s < MAX_CPU_S


@pytest.mark.parametrize(
    "amounts", [{GPU: 1, MEM: 9000}, {GPU: 1, MEM: 90000, CORES: 30}, {GPU: 9}]
)
async def test_the_most_containers_with_cards_are_judged(amounts: Json, cards: IdleCards) -> None:
    most = [container(amounts) | {"name": f"c{i}"} for i in range(MAX_CONTAINERS_WITH_CARDS)]
    began_s = time.process_time()
    answer = await review_pod(service(cards), pod(*most))

    assert time.process_time() - began_s < MAX_CPU_S
    assert answer["allowed"]


async def test_one_more_container_with_cards_is_refused_with_the_number(cards: IdleCards) -> None:
    many = [asking(i) for i in range(MAX_CONTAINERS_WITH_CARDS + 1)]
    answer = await review_pod(service(cards), pod(*many))

    assert answer["status"]["code"] == 422
    assert answer["status"]["message"] == (
        "65 containers of the pod ask for cards: at most 64 may; spread them over several pods"
    )


async def test_containers_without_cards_are_not_counted_as_such(cards: IdleCards) -> None:
    many = [plain(i) for i in range(1, MAX_CONTAINERS)]
    answer = await review_pod(service(cards), pod(asking(0), *many))

    assert answer["allowed"]
    refused = await review_pod(service(cards), pod(asking(0), *many, plain(MAX_CONTAINERS)))
    assert refused["status"]["message"] == "the pod has 513 containers: at most 512 are admitted"


class Blocked(IdleCards):
    """Cards that answer once they are let."""

    def __init__(self) -> None:
        super().__init__(rules().vendors)
        self.let = threading.Event()

    def never_fits_reason(self, request: PodRequest) -> str:
        assert self.let.wait(60)
        return super().never_fits_reason(request)


async def test_a_review_goes_on_without_cards_that_do_not_answer() -> None:
    blocked, thread = Blocked(), RoomThread()
    blocked.set_node(NodeName("n"), [card(0, 0)])
    reviews = service(blocked, thread)
    try:
        answers = await asyncio.gather(*(review_pod(reviews, pod(asking(0))) for _ in range(3)))
    finally:
        blocked.let.set()
        thread.close()

    assert all(answer["allowed"] for answer in answers)
    assert {answer["auditAnnotations"]["cards"] for answer in answers} == {
        "unknown: counting the cards took more than 0.2 s"
    }


async def test_questions_that_were_given_up_are_not_asked_later() -> None:
    blocked, thread = Blocked(), RoomThread()
    blocked.set_node(NodeName("n"), [card(0, 0)])
    reviews = service(blocked, thread)
    await asyncio.gather(*(review_pod(reviews, pod(asking(0))) for _ in range(20)))
    blocked.let.set()
    known: list[int] = []
    await thread.run(lambda: known.append(len(blocked._answers)))

    assert known == [1]
    thread.close()
