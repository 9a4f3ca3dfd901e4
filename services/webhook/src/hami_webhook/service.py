"""The use case: one review in, one answer out, with its span, its audit line and its counters.

What happens to a pod is decided by one pure function (`hamicommon.admission.mutation.mutate`,
handed in by `bootstrap.py`). Here the pod's trace begins: the span's `traceparent` goes into the
annotation `hami.io/traceparent`, from which scheduler and node-agent go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from hamicommon import telemetry
from hamicommon.admission.mutation import Verdict
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from opentelemetry import trace
from opentelemetry.context import Context

from hami_webhook.admission import AdmissionReview, Json, allowed, refused
from hami_webhook.instruments import Instruments

logger = logging.getLogger(__name__)
audit = logging.getLogger("hami_webhook.audit")
tracer = trace.get_tracer(__name__)

FailPolicy = Literal["closed", "open"]
VerdictName = Literal["mutated", "untouched", "denied", "failed"]


class Decide(Protocol):
    """`mutate` with this installation's rules."""

    def __call__(self, pod: Json, *, traceparent: str) -> Verdict:
        """Judges the pod; stamps `traceparent` on one that asks for cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    verdict: VerdictName
    code: int
    message: str
    answer: Json


class Admission:
    """Answers reviews."""

    def __init__(self, decide: Decide, instruments: Instruments, fail_policy: FailPolicy) -> None:
        self._decide = decide
        self._instruments = instruments
        self._fail_policy = fail_policy

    def answer(self, review: AdmissionReview, headers: Mapping[str, str]) -> Json:
        """The answer to one review; never raises."""
        started = time.perf_counter()
        request = review.request
        annotations = annotations_of(request.object)
        with (
            telemetry.log_context(namespace=request.namespace, pod=request.pod_name),
            # A root of its own: a copied or unsampled parent must not swallow the pod's trace.
            tracer.start_as_current_span(
                "admission",
                context=Context(),
                links=[
                    *telemetry.link_to(headers.get("traceparent", "")),
                    *telemetry.link_to(str(annotations.get(TRACEPARENT, ""))),
                ],
                attributes={"namespace": request.namespace, "pod": request.pod_name},
            ) as span,
        ):
            outcome = self._outcome(review)
            span.set_attribute("verdict", outcome.verdict)
            span.set_attribute("message", outcome.message)
            self._record(review, outcome)
        self._instruments.review_seconds.observe(time.perf_counter() - started)
        return outcome.answer

    def count_malformed(self, message: str) -> None:
        """Notes a body that was no review."""
        self._instruments.reviews.labels("malformed").inc()
        logger.warning("malformed review", extra={"error": message})

    def _outcome(self, review: AdmissionReview) -> _Outcome:
        try:
            verdict = self._decide(review.request.object, traceparent=telemetry.traceparent())
        except Exception as exc:
            logger.exception("the pod could not be judged")
            return self._failure(review, exc)
        if not verdict.allowed:
            answer = refused(
                review.request.uid,
                review.api_version,
                code=verdict.code,
                message=verdict.message,
                warnings=verdict.warnings,
            )
            return _Outcome(
                verdict="denied", code=verdict.code, message=verdict.message, answer=answer
            )
        return _Outcome(
            verdict="mutated" if verdict.patch else "untouched",
            code=200,
            message=verdict.message,
            answer=allowed(
                review, patch=verdict.patch, message=verdict.message, warnings=verdict.warnings
            ),
        )

    def _failure(self, review: AdmissionReview, exc: Exception) -> _Outcome:
        message = f"hami-webhook failed on this pod ({type(exc).__name__}); its log says more"
        if self._fail_policy == "open":
            answer = allowed(
                review, patch=[], warnings=(f"{message}; the pod passes as it is, without a slice",)
            )
        else:
            answer = refused(review.request.uid, review.api_version, code=500, message=message)
        return _Outcome(verdict="failed", code=500, message=message, answer=answer)

    def _record(self, review: AdmissionReview, outcome: _Outcome) -> None:
        request = review.request
        self._instruments.reviews.labels(outcome.verdict).inc()
        audit.info(
            "admission",
            extra={
                "verdict": outcome.verdict,
                "code": outcome.code,
                "reason": outcome.message,
                "user": request.user.username,
                "review_uid": request.uid,
                "dry_run": request.dry_run,
            },
        )
