"""POST /webhook and the probes, without TLS and with the real mutation."""

import base64
import json
import logging
from typing import Any

import httpx
import jsonpatch
import pytest
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.routes import create_app, probe_routes
from hami_webhook.service import Decide, FailPolicy, ReviewService
from hamicommon import device_config
from hamicommon.admission.mistakes.quotas import judge_quota
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionResult, AdmissionRules
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from tests.unit.webhook.reviews import review

RULES = AdmissionRules(
    vendors=Vendors.from_config(device_config.load(None)), scheduler_name="hami-scheduler"
)
MAX_BODY = 100_000


async def decide_pod(pod: Json, about: AdmissionCircumstances) -> AdmissionResult:
    return mutate(pod, RULES, about)


def client(
    instruments: WebhookInstruments,
    *,
    decide: Decide = decide_pod,
    fail_policy: FailPolicy = "closed",
    not_ready_reasons: tuple[str, ...] = (),
    tracer: Tracer | None = None,
) -> httpx.AsyncClient:
    admission = ReviewService(
        decide,
        instruments,
        fail_policy,
        decide_quota=lambda quota, before: judge_quota(quota, before, RULES.vendors),
        tracer=tracer,
    )
    probes = probe_routes(instruments.registry, lambda: list(not_ready_reasons))
    app = create_app(admission, probes, max_body_bytes=MAX_BODY)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://webhook")


def pod(**limits: str) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": limits}}
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}


@pytest.fixture
def instruments() -> WebhookInstruments:
    return WebhookInstruments()


def count(instruments: WebhookInstruments, verdict: str) -> float:
    return sum(
        sample.value
        for metric in instruments.registry.collect()
        for sample in metric.samples
        if sample.name == "hami_webhook_reviews_total" and sample.labels["verdict"] == verdict
    )


async def response_to(
    given: Json, instruments: WebhookInstruments, path: str = "/webhook", **changes: Any
) -> Json:
    async with client(instruments, **changes) as http:
        answer: Json = (await http.post(path, json=given)).json()["response"]
    return answer


async def fail(_pod: Any, _about: AdmissionCircumstances) -> AdmissionResult:
    raise ZeroDivisionError("secret detail")


async def test_a_pod_that_asks_for_a_card_is_sent_to_our_scheduler(
    instruments: WebhookInstruments, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    response = await response_to(review(pod(**{"nvidia.com/gpu": "1"})), instruments)

    patch = json.loads(base64.b64decode(response["patch"]))
    assert {"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"} in patch
    assert count(instruments, "mutated") == 1
    (line,) = [record for record in caplog.records if record.name == "hami_webhook.audit"]
    fields = line.__dict__
    assert (fields["verdict"], fields["user"], fields["review_uid"]) == ("mutated", "alice", "r1")
    assert (fields["namespace"], fields["pod"]) == ("ns", "p")


async def test_the_pod_carries_who_created_it(instruments: WebhookInstruments) -> None:
    forged = pod(**{"nvidia.com/gpu": "1"})
    forged["metadata"]["annotations"] = {"hami.io/created-by": "root"}
    response = await response_to(review(forged), instruments)

    patch = json.loads(base64.b64decode(response["patch"]))
    assert [op["value"] for op in patch if op["path"].endswith("created-by")] == ["alice"]


async def test_a_pod_without_a_card_is_left_as_it_is(instruments: WebhookInstruments) -> None:
    response = await response_to(review(pod(cpu="1")), instruments)

    annotations = {"reason": "no-cards"}
    assert response == {"uid": "r1", "allowed": True, "auditAnnotations": annotations}
    assert count(instruments, "untouched") == 1


async def test_the_pods_trace_begins_here(instruments: WebhookInstruments) -> None:
    provider = TracerProvider()
    response = await response_to(
        review(pod(**{"nvidia.com/gpu": "1"})), instruments, tracer=provider.get_tracer("t")
    )

    patch = json.loads(base64.b64decode(response["patch"]))
    (stamp,) = [op["value"] for op in patch if "annotations" in op["path"]]
    assert stamp["hami.io/traceparent"].startswith("00-")
    provider.shutdown()


async def review_and_patch(http: httpx.AsyncClient, given: Json) -> tuple[Json, list[Json]]:
    response = (await http.post("/webhook", json=review(given))).json()["response"]
    steps = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return jsonpatch.apply_patch(given, steps), steps


async def test_the_same_pod_twice_is_no_second_patch(instruments: WebhookInstruments) -> None:
    provider = TracerProvider()
    async with client(instruments, tracer=provider.get_tracer("t")) as http:
        once, _ = await review_and_patch(http, pod(**{"nvidia.com/gpu": "1"}))
        assert (await review_and_patch(http, once))[1] == []

        # Another pod with a copied stamp begins a separate trace.
        copied = {**once, "metadata": {**once["metadata"], "name": "q"}}
        twin, steps = await review_and_patch(http, copied)
    provider.shutdown()

    assert [step["op"] for step in steps] == ["replace"]
    stamps = {one["metadata"]["annotations"]["hami.io/traceparent"] for one in (once, twin)}
    assert len(stamps) == 2


async def test_what_can_never_work_is_refused_with_the_reason(
    instruments: WebhookInstruments,
) -> None:
    asking = pod(**{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "150"})
    response = await response_to(review(asking), instruments)

    assert response["allowed"] is False
    assert "nvidia.com/gpumem-percentage" in response["status"]["message"]
    assert count(instruments, "denied") == 1


async def test_a_body_that_is_no_review_gets_400_and_a_sentence(
    instruments: WebhookInstruments,
) -> None:
    async with client(instruments) as http:
        answer = await http.post("/webhook", content=b"nonsense")

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("the body is not JSON")
    assert count(instruments, "malformed") == 1


async def test_a_malformed_review_with_a_uid_gets_a_review_as_answer(
    instruments: WebhookInstruments,
) -> None:
    async with client(instruments) as http:
        answer = await http.post("/webhook", json=review({"kind": "Pod", "spec": 3}))

    assert answer.status_code == 200
    response = answer.json()["response"]
    assert (response["uid"], response["allowed"], response["status"]["code"]) == ("r1", False, 400)


async def test_a_body_that_is_too_long_is_not_read_to_its_end(
    instruments: WebhookInstruments,
) -> None:
    async with client(instruments) as http:
        answer = await http.post("/webhook", content=b"x" * (MAX_BODY + 1))

    assert answer.status_code == 413


async def test_our_own_failure_refuses_the_pod_without_a_traceback(
    instruments: WebhookInstruments,
) -> None:
    response = await response_to(review(pod()), instruments, decide=fail)

    assert response["allowed"] is False
    assert response["status"]["code"] == 500
    assert "secret detail" not in json.dumps(response)
    assert count(instruments, "failed") == 1


async def test_our_own_failure_lets_the_pod_pass_with_a_warning_when_open(
    instruments: WebhookInstruments,
) -> None:
    response = await response_to(review(pod()), instruments, decide=fail, fail_policy="open")

    assert response["allowed"] is True
    assert "patch" not in response
    assert "without a slice" in response["warnings"][0]


async def test_the_probes_report_why_it_is_not_ready(instruments: WebhookInstruments) -> None:
    async with client(
        instruments, not_ready_reasons=("the certificate expired", "stopping")
    ) as http:
        assert (await http.get("/healthz")).text == "ok"
        ready = await http.get("/readyz")
        page = (await http.get("/metrics")).text

    assert (ready.status_code, ready.text) == (503, "the certificate expired; stopping")
    assert "hami_webhook_review_seconds" in page


def ephemeral_review(container: dict[str, Any]) -> dict[str, Any]:
    before = pod(**{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"})
    after = json.loads(json.dumps(before))
    after["spec"]["ephemeralContainers"] = [{"name": "debugger", "image": "x", **container}]
    asked = review(after)
    asked["request"] |= {
        "operation": "UPDATE",
        "subResource": "ephemeralcontainers",
        "oldObject": before,
    }
    return asked


async def test_an_ephemeral_container_is_judged(instruments: WebhookInstruments) -> None:
    privileged = {"securityContext": {"privileged": True}}
    async with client(instruments) as http:
        refused = await http.post("/webhook", json=ephemeral_review(privileged))
        admitted = await http.post("/webhook", json=ephemeral_review({}))

    assert refused.json()["response"]["status"]["message"].startswith(
        "container debugger is privileged"
    )
    # No stamp, no schedulerName: nothing else of a pod can change then.
    assert "patch" not in admitted.json()["response"]


@pytest.mark.parametrize("subresource", [None, "resize", "status"])
async def test_other_updates_are_let_be(
    subresource: str | None, instruments: WebhookInstruments
) -> None:
    asked = ephemeral_review({"securityContext": {"privileged": True}})
    asked["request"]["subResource"] = subresource
    response = await response_to(asked, instruments)

    assert (response["allowed"], response["auditAnnotations"]) == (True, {"reason": "not-judged"})
    assert "patch" not in response


@pytest.mark.parametrize(
    ("user", "allowed"),
    [
        ({"username": "system:node:n", "groups": ["system:nodes"]}, True),
        ({"username": "system:node:n", "groups": ["devs"]}, False),
        ({"username": "alice", "groups": ["system:nodes"]}, False),
        ({"username": "alice", "groups": "system:nodes"}, False),
    ],
)
async def test_only_a_kubelet_shows_static_pods(
    user: dict[str, Any], allowed: bool, instruments: WebhookInstruments
) -> None:
    mirror = pod(**{"nvidia.com/gpu": "1"})
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    mirror["spec"]["nodeName"] = "n"
    asked = review(mirror)
    asked["request"]["userInfo"] = user
    response = await response_to(asked, instruments)

    assert response["allowed"] is allowed


def quota(**hard: str) -> dict[str, Any]:
    return {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}


async def test_a_quota_that_would_limit_nothing_is_refused_with_what_would_be_right(
    instruments: WebhookInstruments, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    response = await response_to(
        review(quota(**{"nvidia.com/gpumem": "4000"})), instruments, "/quotas"
    )

    assert response["allowed"] is False
    assert response["status"] == {
        "code": 422,
        "reason": "Invalid",
        "message": "nvidia.com/gpumem: 4000 limits nothing: write limits.nvidia.com/gpumem: 4000",
    }
    assert count(instruments, "denied") == 1
    (line,) = [record for record in caplog.records if record.name == "hami_webhook.audit"]
    assert (line.__dict__["object"], line.__dict__["reason"]) == ("q", "quota-mistake")


async def test_a_quota_that_limits_passes(instruments: WebhookInstruments) -> None:
    response = await response_to(
        review(quota(**{"limits.nvidia.com/gpumem": "20480"})), instruments, "/quotas"
    )

    assert response["allowed"] is True
    assert "patch" not in response
    assert "warnings" not in response


async def test_a_mistake_that_a_quota_had_before_does_not_hold_up_a_change_of_the_rest(
    instruments: WebhookInstruments,
) -> None:
    asked = review(quota(**{"nvidia.com/gpumem": "4000", "limits.nvidia.com/gpucores": "100"}))
    asked["request"] |= {
        "operation": "UPDATE",
        "oldObject": quota(**{"nvidia.com/gpumem": "4000"}),
    }
    response = await response_to(asked, instruments, "/quotas")

    assert response["allowed"] is True
    assert "write limits.nvidia.com/gpumem: 4000" in response["warnings"][0]


async def test_each_path_has_its_kind_of_object(instruments: WebhookInstruments) -> None:
    async with client(instruments) as http:
        pod_as_quota = (await http.post("/quotas", json=review(pod()))).json()
        quota_as_pod = (await http.post("/webhook", json=review(quota()))).json()

    assert "for ResourceQuotas" in pod_as_quota["response"]["status"]["message"]
    assert "for pods" in quota_as_pod["response"]["status"]["message"]
