"""Why pods wait, and what is left."""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import (
    AT,
    CORES,
    MEMORY,
    NAMESPACE,
    NODE,
    POD,
    POD_UID,
    POD_WAYS,
    TYPE,
    UNTIL,
    since,
)
from hamicommon.ledger.questions.parameters import Parameter, ParameterKind
from hamicommon.ledger.questions.question import Question, columns

_NO_REQUEST = "the decision was recorded without its request"
_ASKED = {
    "card_count": _NO_REQUEST,
    "memory_bytes": "the pod asked for a share of a card, or for none of its memory",
    "core_ratio": _NO_REQUEST,
}
_NOT_TRACED = {"trace_id": "the decision was not traced"}
_NOT_A_SHARE = {"memory_ratio": "asked for in bytes"}

QUESTIONS = (
    Question(
        number=1,
        name="why-waiting",
        title="Why does a pod wait?",
        parameters=(POD_UID, NAMESPACE, POD, AT),
        columns=columns(
            "decided_at decision last_at pod_uid namespace pod_name outcome node summary message"
            " reason_counts candidate_count attempt_count card_count memory_bytes memory_ratio"
            " core_ratio decision_s trace_id",
            unknown=_ASKED | _NOT_TRACED | {"decision_s": "it was not measured"},
            none=_NOT_A_SHARE | {"node": "not placed"},
        ),
        key=("decided_at", "decision"),
        descending=True,
        needs=POD_WAYS,
    ),
    Question(
        number=1,
        name="pending-reasons",
        title="How many pods wait, and for which reasons?",
        parameters=(AT,),
        columns=columns(
            "reason_code pod_count oldest_at under_1m_count under_10m_count under_30m_count"
            " over_30m_count"
        ),
        key=("reason_code",),
    ),
    Question(
        number=2,
        name="waiting-pods",
        title="Which pods wait, for what, and since when?",
        parameters=(
            AT,
            NAMESPACE,
            Parameter(
                name="reason", kind=ParameterKind.TEXT, meaning="only pods with this reason code"
            ),
        ),
        columns=columns(
            "since_at pod_uid namespace pod_name last_at attempt_count card_count memory_bytes"
            " memory_ratio core_ratio reason_code reason_counts candidate_count summary trace_id"
            " ahead_count",
            unknown=_ASKED | _NOT_TRACED,
            none=_NOT_A_SHARE,
        ),
        key=("since_at", "pod_uid"),
    ),
    Question(
        number=2,
        name="ahead-of",
        title="Who has waited longer than a pod?",
        parameters=(POD_UID, NAMESPACE, POD, AT),
        columns=columns(
            "since_at pod_uid namespace pod_name card_count memory_bytes memory_ratio core_ratio"
            " reason_code",
            unknown=_ASKED,
            none=_NOT_A_SHARE,
        ),
        key=("since_at", "pod_uid"),
        needs=POD_WAYS,
    ),
    Question(
        number=3,
        name="card-shortfalls",
        title="Why does a slice of this size fit on no card, card by card?",
        parameters=(MEMORY, CORES, NODE, TYPE, AT),
        columns=columns(
            "refusal_count short_memory_bytes device_uuid node card_index type refusals free_bytes"
            " free_core_ratio free_slot_count short_core_ratio pod_count health_reason"
        ),
        key=("refusal_count", "short_memory_bytes", "device_uuid"),
    ),
    Question(
        number=4,
        name="what-fits",
        title="How much is left, and how many more slices of this size fit?",
        parameters=(MEMORY, CORES, TYPE, AT),
        columns=columns(
            "type fitting_count card_count node_count free_bytes largest_free_bytes stranded_bytes"
        ),
        key=("type",),
    ),
    Question(
        number=17,
        name="decisions",
        title="What was decided?",
        parameters=(
            since("-1h"),
            UNTIL,
            NAMESPACE,
            Parameter(
                name="outcome",
                kind=ParameterKind.TEXT,
                meaning="only decisions that ended so",
                choices=("placed", "refused", "error"),
            ),
        ),
        columns=columns(
            "decided_at decision last_at namespace pod_name pod_uid outcome node summary"
            " reason_counts candidate_count attempt_count decision_s trace_id",
            unknown=_NOT_TRACED | {"decision_s": "it was not measured"},
            none={"node": "not placed"},
        ),
        key=("decided_at", "decision"),
        descending=True,
    ),
)
