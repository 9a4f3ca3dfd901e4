"""Answer a review: decide, and record span, audit line and metrics.

One pure function decides what happens to a pod (`hamicommon.admission.mutation.mutate`, passed in
by `bootstrap.py`). The pod's trace begins here: the span's `traceparent` is written into the
annotation `hami.io/traceparent`, from which scheduler and node-agent continue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cachetools import TTLCache
from hamicommon import telemetry
from hamicommon.admission.verdicts import (
    NOTHING_KNOWN,
    AdmissionCircumstances,
    AdmissionResult,
    Knowledge,
)
from hamicommon.events import AdmissionRefused
from hamicommon.k8s.types import Json
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, Tracer

from hami_webhook.metrics import WebhookInstruments
from hami_webhook.refusals import refusal_of
from hami_webhook.review import AdmissionReview, allowed_response, refused_response

logger = logging.getLogger(__name__)
audit = logging.getLogger("hami_webhook.audit")

FailPolicy = Literal["closed", "open"]
VerdictName = Literal["mutated", "untouched", "denied", "failed"]

Decide = Callable[[Json, AdmissionCircumstances], Awaitable[AdmissionResult]]
"""Function like `mutate` with this installation's rules."""
DecideQuota = Callable[[Json, Json | None], AdmissionResult]
"""Function like `judge_quota` with this installation's vendors.

The second argument is the old quota.
"""
EPHEMERAL = "ephemeralcontainers"
"""Subresource with which ephemeral containers are added."""
NODE_USER, NODES_GROUP = "system:node:", "system:nodes"
NOT_JUDGED = AdmissionResult(allowed=True, reason="not-judged")
"""Answer to other updates, which can't change a pod's variables and mounts."""
FAILED = "own-failure"
"""Reason code of a failure of this service."""
STAMP_TTL_S = 30.0
"""Time within which the API server may send a pod again, as it answers clients within 30 s."""
MAX_STAMPS = 4096


@dataclass(slots=True, kw_only=True)
class _Outcome:
    verdict: VerdictName
    reason: str
    code: int
    message: str
    answer: Json
    warnings: Sequence[str] = ()


class ReviewService:
    """Service that answers reviews."""

    def __init__(
        self,
        decide: Decide,
        instruments: WebhookInstruments,
        fail_policy: FailPolicy,
        *,
        decide_quota: DecideQuota = lambda quota, before: NOT_JUDGED,
        knowledge: Callable[[], Knowledge] = lambda: NOTHING_KNOWN,
        announce: Callable[[AdmissionRefused], None] = lambda refusal: None,
        tracer: Tracer | None = None,
    ) -> None:
        """`announce` queues refusals without waiting; `tracer` defaults to the process's."""
        self._decide = decide
        self._decide_quota = decide_quota
        self._instruments = instruments
        self._fail_policy = fail_policy
        self._knowledge = knowledge
        self._announce = announce
        # The real one, which is there after `telemetry.setup`: a module's would ask each time.
        self._tracer = tracer or trace.get_tracer(__name__)
        # Trace stamp -> its pod. The API server shows a pod again when another webhook changed it
        # (`reinvocationPolicy`): our stamp stays then, one of another pod is replaced. A replica
        # that did not see the pod first replaces it too, and the trace begins at that review.
        self._stamps: TTLCache[str, str] = TTLCache(MAX_STAMPS, STAMP_TTL_S)

    async def answer(self, review: AdmissionReview, traceparent: str = "") -> Json:
        """Return the answer to a review; its span links to the caller's `traceparent`."""
        started = time.perf_counter()
        stamp = review.stamp
        # A separate trace: a copied or unsampled parent must not hide the pod's trace.
        links = [*telemetry.link_to(traceparent), *telemetry.link_to(stamp)]
        span = self._tracer.start_span("admission", context=Context(), links=links)
        pod = review.pod_name
        outcome = await self._outcome(review, pod, stamp, span)
        span.set_attributes(
            {
                "hami.verdict": outcome.verdict,
                "hami.reason": outcome.reason,
                "hami.message": outcome.message,
                # Without a uid: the API server gives a pod its own after admission.
                **telemetry.pod_attributes(namespace=review.namespace, name=pod),
            }
        )
        span.end()
        self._record(review, pod, outcome, span.get_span_context())
        self._instruments.review_seconds.observe(time.perf_counter() - started)
        return outcome.answer

    async def answer_quota(self, review: AdmissionReview) -> Json:
        """Return the answer to a review of a ResourceQuota, whose refusal is not published."""
        try:
            outcome = _as_outcome(review, self._decide_quota(review.pod, review.old_pod))
        except Exception as exc:  # as of a pod: the policy of failures decides
            logger.exception("Failed to check a quota", extra={"quota": review.pod_name})
            outcome = self._failure(review, exc, "quota", "the quota is admitted unchecked")
        self._instruments.count(outcome.verdict, outcome.reason)
        audit.info("admission of a quota", extra=_audit_fields(review, outcome))
        return outcome.answer

    def count_malformed(self, message: str) -> None:
        """Count a body that is no review."""
        self._instruments.count("malformed", "no-review")
        logger.warning("Refused a malformed review", extra={"error": message})

    async def _outcome(self, review: AdmissionReview, pod: str, stamp: str, span: Span) -> _Outcome:
        try:
            verdict = await self._judge(review, pod, stamp, span)
        except Exception as exc:  # whatever it is: the policy of failures decides
            with (
                trace.use_span(span),
                telemetry.log_context(namespace=review.namespace, pod=pod),
            ):
                logger.exception("Failed to mutate or check a pod")
            return self._failure(
                review, exc, "pod", "the pod is admitted unchanged, without a slice"
            )
        return _as_outcome(review, verdict)

    async def _judge(
        self, review: AdmissionReview, name: str, stamp: str, span: Span
    ) -> AdmissionResult:
        adds_ephemeral = review.subresource == EPHEMERAL
        if review.operation != "CREATE" and not adds_ephemeral:
            return NOT_JUDGED
        pod = f"{review.namespace}/{name}"
        about = AdmissionCircumstances(
            namespace=review.namespace,
            traceparent=telemetry.traceparent_of(span),
            stamped=bool(stamp) and self._stamps.get(stamp) == pod,
            username=review.username,
            knowledge=self._knowledge(),
            by_node=review.username.startswith(NODE_USER) and NODES_GROUP in review.groups,
            before=(review.old_pod or {}) if adds_ephemeral else None,
        )
        verdict = await self._decide(review.pod, about)
        if adds_ephemeral:
            return verdict
        if verdict.allowed and verdict.reason == "asks-for-cards":
            self._stamps[stamp if about.stamped else about.traceparent] = pod
        return verdict

    def _failure(
        self, review: AdmissionReview, exc: Exception, kind: str, follows: str
    ) -> _Outcome:
        failed = f"hami-webhook failed on this {kind}"
        message = f"{failed} ({type(exc).__name__}); its log has the details"
        audit_annotations = {"reason": FAILED}
        if self._fail_policy == "open":
            warnings = (f"{message}; {follows}",)
            answer = allowed_response(review, warnings=warnings, audit=audit_annotations)
        else:
            answer = refused_response(
                review.uid,
                review.api_version,
                code=500,
                message=message,
                audit=audit_annotations,
            )
        return _Outcome(verdict="failed", reason=FAILED, code=500, message=message, answer=answer)

    def _record(
        self, review: AdmissionReview, pod: str, outcome: _Outcome, span: SpanContext
    ) -> None:
        self._instruments.count(outcome.verdict, outcome.reason)
        fields = {**_audit_fields(review, outcome), "pod": pod}
        if span.is_valid:
            fields["trace_id"] = f"{span.trace_id:032x}"
        audit.info("admission", extra=fields)
        if outcome.verdict in ("denied", "failed") and not review.dry_run:
            self._announce(
                refusal_of(
                    review,
                    reason=outcome.reason,
                    code=outcome.code,
                    message=outcome.message,
                    at=datetime.now(UTC),
                )
            )


def _as_outcome(review: AdmissionReview, verdict: AdmissionResult) -> _Outcome:
    audit_annotations = {"reason": verdict.reason, **verdict.audit}
    if verdict.allowed:
        answer = allowed_response(
            review,
            patch=verdict.patch,
            message=verdict.message,
            warnings=verdict.warnings,
            audit=audit_annotations,
        )
    else:
        answer = refused_response(
            review.uid,
            review.api_version,
            code=verdict.code,
            message=verdict.message,
            warnings=verdict.warnings,
            audit=audit_annotations,
        )
    passed: VerdictName = "mutated" if verdict.patch else "untouched"
    return _Outcome(
        verdict=passed if verdict.allowed else "denied",
        reason=verdict.reason,
        code=verdict.code,
        message=verdict.message,
        answer=answer,
        warnings=verdict.warnings,
    )


def _audit_fields(review: AdmissionReview, outcome: _Outcome) -> dict[str, object]:
    """Return the fields of an audit line."""
    return {
        "namespace": review.namespace,
        "object": review.pod_name,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "code": outcome.code,
        "answer": outcome.message,
        "warnings": outcome.warnings,
        "user": review.username,
        "operation": review.operation,
        "review_uid": review.uid,
        "dry_run": review.dry_run,
    }
