"""The use case: one review in, one answer out, with its span, its audit line and its counters.

What happens to a pod is decided by one pure function (`hamicommon.admission.mutation.mutate`,
handed in by `bootstrap.py`). Here the pod's trace begins: the span's `traceparent` goes into the
annotation `hami.io/traceparent`, from which scheduler and node-agent go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from hamicommon import telemetry
from hamicommon.admission.knowledge import NOTHING_KNOWN, Knowledge
from hamicommon.admission.mutation import Circumstances, Verdict
from hamicommon.events import AdmissionRefused
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from opentelemetry import trace

from hami_webhook.admission import AdmissionReview, Json, allowed, refused
from hami_webhook.instruments import Instruments
from hami_webhook.stamps import Stamps

logger = logging.getLogger(__name__)
audit = logging.getLogger("hami_webhook.audit")
tracer = trace.get_tracer(__name__)

FailPolicy = Literal["closed", "open"]
VerdictName = Literal["mutated", "untouched", "denied", "failed"]

Decide = Callable[[Json, Circumstances], Verdict]
"""`mutate` with this installation's rules."""
FAILED = "own-failure"
"""The reason of a verdict that is none: this service failed on the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    verdict: VerdictName
    reason: str
    code: int
    message: str
    answer: Json
    warnings: Sequence[str] = ()


class Admission:
    """Answers reviews."""

    def __init__(
        self,
        decide: Decide,
        instruments: Instruments,
        fail_policy: FailPolicy,
        *,
        knowledge: Callable[[], Knowledge] = lambda: NOTHING_KNOWN,
        announce: Callable[[AdmissionRefused], None] = lambda refusal: None,
    ) -> None:
        """`announce` is told of refusals and must return at once."""
        self._decide = decide
        self._instruments = instruments
        self._fail_policy = fail_policy
        self._knowledge = knowledge
        self._announce = announce
        self._stamps = Stamps()

    def answer(self, review: AdmissionReview, headers: Mapping[str, str]) -> Json:
        """The answer to one review; never raises."""
        started = time.perf_counter()
        stamp = str(annotations_of(review.pod).get(TRACEPARENT, ""))
        name = review.pod_name
        with (
            telemetry.log_context(namespace=review.namespace, pod=name),
            # A root of its own: a copied or unsampled parent must not swallow the pod's trace.
            telemetry.root_span(
                tracer,
                "admission",
                links=[
                    *telemetry.link_to(headers.get("traceparent", "")),
                    *telemetry.link_to(stamp),
                ],
                attributes={"namespace": review.namespace, "pod": name},
            ) as span,
        ):
            outcome = self._outcome(review, stamp)
            span.set_attributes(
                {
                    "verdict": outcome.verdict,
                    "reason": outcome.reason,
                    "message": outcome.message,
                }
            )
            self._record(review, outcome)
        self._instruments.review_seconds.observe(time.perf_counter() - started)
        return outcome.answer

    def count_malformed(self, message: str) -> None:
        """Notes a body that was no review."""
        self._instruments.count("malformed", "no-review")
        logger.warning("malformed review", extra={"error": message})

    def _outcome(self, review: AdmissionReview, stamp: str) -> _Outcome:
        try:
            verdict = self._judge(review, stamp)
        except Exception as exc:
            logger.exception("the pod could not be judged")
            return self._failure(review, exc)
        if verdict.allowed:
            answer = allowed(
                review,
                patch=verdict.patch,
                message=verdict.message,
                warnings=verdict.warnings,
                audit={"reason": verdict.reason, **verdict.audit},
            )
        else:
            answer = refused(
                review.uid,
                review.api_version,
                code=verdict.code,
                message=verdict.message,
                warnings=verdict.warnings,
                audit={"reason": verdict.reason, **verdict.audit},
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

    def _judge(self, review: AdmissionReview, stamp: str) -> Verdict:
        pod, now_s = f"{review.namespace}/{review.pod_name}", time.monotonic()
        about = Circumstances(
            namespace=review.namespace,
            traceparent=telemetry.traceparent(),
            stamped=bool(stamp) and self._stamps.has(stamp, pod, now_s=now_s),
            knowledge=self._knowledge(),
        )
        verdict = self._decide(review.pod, about)
        if verdict.allowed and verdict.reason == "asks-for-cards":
            self._stamps.give(stamp if about.stamped else about.traceparent, pod, now_s=now_s)
        return verdict

    def _failure(self, review: AdmissionReview, exc: Exception) -> _Outcome:
        message = f"hami-webhook failed on this pod ({type(exc).__name__}); its log says more"
        said = {"reason": FAILED}
        if self._fail_policy == "open":
            warning = f"{message}; the pod passes as it is, without a slice"
            answer = allowed(review, warnings=(warning,), audit=said)
        else:
            answer = refused(review.uid, review.api_version, code=500, message=message, audit=said)
        return _Outcome(verdict="failed", reason=FAILED, code=500, message=message, answer=answer)

    def _record(self, review: AdmissionReview, outcome: _Outcome) -> None:
        self._instruments.count(outcome.verdict, outcome.reason)
        audit.info(
            "admission",
            extra={
                "verdict": outcome.verdict,
                "reason": outcome.reason,
                "code": outcome.code,
                "said": outcome.message,
                "warnings": outcome.warnings,
                "user": review.username,
                "review_uid": review.uid,
                "dry_run": review.dry_run,
            },
        )
        if outcome.verdict in ("denied", "failed") and not review.dry_run:
            self._announce(
                AdmissionRefused(
                    review_uid=review.uid,
                    namespace=review.namespace,
                    pod_name=review.pod_name,
                    user=review.username,
                    reason=outcome.reason,
                    said=outcome.message,
                    at=datetime.now(UTC),
                )
            )
