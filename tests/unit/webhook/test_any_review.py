"""Any request to /webhook gets a valid answer, and no patch that the API server would refuse.

The reviews are such as a real API server could send, or broken at any place. The emulated API
server's own reading, defaulting and validation judge the patches. `make test-reviews` runs 10,000.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import time
from typing import Any

import httpx
import pytest
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.routes import create_app, probe_routes
from hami_webhook.service import ReviewService
from hamicommon.admission.cache import AdmissionCache
from hamicommon.admission.quota import QuotaUse
from hamicommon.admission.verdicts import AdmissionRules, Knowledge
from hamicommon.device_config import DeviceConfig, NvidiaConfig
from hamicommon.k8s.types import Json
from hamicommon.vendors.annotation_table import scheduler_owned, user_annotations
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpatch import apply_patch
from kubelocal.apiserver.kinds.defaults import default_pod_spec
from kubelocal.apiserver.schema import fields
from kubelocal.apiserver.validation import validate_pod_spec

from tests.unit.webhook.reviews import review as review_object

POD = "V1Pod"
SLOWEST_S = 5.0
"""The API server's patience (`timeoutSeconds`), of computing."""

EAGER = NvidiaConfig(overwrite_env=True, gpu_core_policy="force", runtime_class_name="nvidia")
VENDORS = Vendors.from_config(DeviceConfig(nvidia=EAGER), enable_ascend=True, enable_iluvatar=True)
RULES = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler")
KNOWLEDGE = Knowledge(quotas={"ns": {"nvidia.com/gpumem": QuotaUse(limit=9000, used=1)}})

amounts = st.one_of(
    st.integers(-2, 200),
    # More than 64 bits: no API server stores it, and a client of the webhook may send it.
    st.just(2**80),
    st.sampled_from(
        ("0", "1", "2", "3", "16Gi", "1k", "0.5", "100", "1500", "x", "", "1e3", "9" * 30)
    ),
)
resources = st.dictionaries(
    st.sampled_from((*VENDORS.resource_names, "cpu", "memory", "nvidia.com/gpumemory")),
    amounts,
    max_size=5,
)
names = st.sampled_from(("a", "b", "main", "side-car"))
env = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(("A", "CUDA_TASK_PRIORITY", "NVIDIA_VISIBLE_DEVICES"))},
        optional={
            "value": st.text(max_size=3),
            "valueFrom": st.just({"fieldRef": {"fieldPath": "metadata.name"}}),
        },
    ),
    max_size=2,
)


@st.composite
def requirements(draw: st.DrawFn) -> Json:
    """Draw limits, and requests as users write them: none, the same, or others."""
    limits = draw(resources)
    requests = draw(st.sampled_from(("none", "same", "other")))
    if requests == "none":
        return {"limits": limits}
    return {"limits": limits, "requests": dict(limits) if requests == "same" else draw(resources)}


containers = st.fixed_dictionaries(
    {"name": names, "image": st.just("x")},
    optional={
        "resources": requirements(),
        "env": env,
        "securityContext": st.fixed_dictionaries({"privileged": st.booleans()}),
        "restartPolicy": st.sampled_from(("Always", "Never")),
    },
)
annotations = st.dictionaries(
    st.sampled_from(
        (
            *sorted(scheduler_owned(VENDORS)),
            *(row.name for row in user_annotations(VENDORS)),
            *("huawei.com/vnpu-mode", "metax-tech.com/sgpu-app-class", "hami.io/other"),
        )
    ),
    st.one_of(st.text(max_size=8), st.sampled_from(("online", "spread", "slot=1,core=1,memory=1"))),
    max_size=4,
)
pods = st.fixed_dictionaries(
    {
        "apiVersion": st.just("v1"),
        "kind": st.just("Pod"),
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "name": names,
                "generateName": names,
                "annotations": annotations,
                "namespace": st.just("ns"),
            },
        ),
        "spec": st.fixed_dictionaries(
            {
                "containers": st.lists(
                    containers, min_size=1, max_size=3, unique_by=lambda each: each["name"]
                )
            },
            optional={
                "initContainers": st.lists(containers, max_size=2),
                "ephemeralContainers": st.lists(containers, max_size=1),
                "schedulerName": st.sampled_from(("", "default-scheduler", "hami-scheduler", "x")),
                "nodeName": st.just("n"),
                "runtimeClassName": st.just("r"),
            },
        ),
    }
)
anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def as_stored(pod: Json) -> tuple[Json, bool]:
    """The pod as the API server reads and completes it, and whether it would accept it."""
    try:
        read, _ = fields.clean(POD, pod)
        default_pod_spec(read["spec"])
        return read, not validate_pod_spec("spec", read["spec"])
    except fields.Unreadable:
        return pod, False


@st.composite
def reviews(draw: st.DrawFn) -> bytes:
    """Draw valid, defaulted and broken reviews, and texts that are no reviews."""
    pod = draw(pods)
    if draw(st.booleans()):
        pod, _ = as_stored(copy.deepcopy(pod))
    review = review_object(pod, draw(st.sampled_from(("v1", "v1beta1"))))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        _break(draw, review)
    body = json.dumps(review, ensure_ascii=False).encode()
    if draw(st.integers(0, 19)) == 0:
        body = draw(st.one_of(st.binary(max_size=30), st.just(body[: len(body) // 2])))
    return body


def _break(draw: st.DrawFn, review: Json) -> None:
    """Replace any part by any value."""
    parent: Any = review
    key: Any = draw(st.sampled_from(sorted(parent)))
    while isinstance(parent[key], dict | list) and parent[key] and draw(st.integers(0, 5)):
        parent = parent[key]
        key = draw(
            st.sampled_from(sorted(parent) if isinstance(parent, dict) else range(len(parent)))
        )
    if draw(st.booleans()):
        parent[key] = draw(anything)
    else:
        del parent[key]


def client() -> httpx.AsyncClient:
    instruments = WebhookInstruments()
    admission = ReviewService(
        AdmissionCache(RULES),
        instruments,
        "closed",
        knowledge=lambda: KNOWLEDGE,
    )
    app = create_app(admission, probe_routes(instruments.registry, list), max_body_bytes=2**20)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://w")


async def check(http: httpx.AsyncClient, body: bytes) -> None:
    began_s = time.process_time()
    answer = await http.post("/webhook", content=body)

    assert time.process_time() - began_s < SLOWEST_S
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]
        return
    review = json.loads(body)
    response = answer.json()["response"]
    assert response["uid"] == review["request"]["uid"]
    assert answer.json()["apiVersion"] in ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
    # A failure of our own would be one: nothing that is sent may bring it about.
    assert response.get("status", {}).get("code") != 500, response
    if not response["allowed"]:
        assert response["status"]["message"]
        assert "patch" not in response
        return
    if "patch" in response:
        await check_patch(http, review, json.loads(base64.b64decode(response["patch"])))


async def check_patch(http: httpx.AsyncClient, review: Json, patch: list[Json]) -> None:
    pod = review["request"]["object"]
    after = apply_patch(pod, patch)
    _, taken = as_stored(copy.deepcopy(pod))
    if not taken:
        # It is not seen again: the later validation refuses it.
        return
    stored, still_taken = as_stored(copy.deepcopy(after))
    assert still_taken, validate_pod_spec("spec", stored["spec"])
    # By the same user, or none, as the first one: a pod is stamped with its creator.
    asked = {**review, "request": {**review["request"], "object": stored}}
    again = await http.post("/webhook", json=asked)
    answered = again.json()["response"]
    assert answered["allowed"], answered
    assert "patch" not in answered, json.loads(base64.b64decode(answered["patch"]))


PARTS = 10
"""Parts that keep 10,000 reviews within a test's time-out on a slow machine."""


@pytest.mark.parametrize("part", range(PARTS))
def test_any_review_is_answered(part: int, request: pytest.FixtureRequest) -> None:
    runner = asyncio.Runner()
    http = client()

    @settings(
        max_examples=request.config.getoption("--review-cases") // PARTS,
        database=None,
    )
    @given(reviews())
    def answer_reviews(body: bytes) -> None:
        runner.run(check(http, body))

    with runner:
        answer_reviews()
        runner.run(http.aclose())
