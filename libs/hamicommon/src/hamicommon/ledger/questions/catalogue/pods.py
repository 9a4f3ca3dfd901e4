"""One pod: what it asked for and got, what it uses, which step took how long."""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import (
    AT,
    CARD,
    NAMESPACE,
    NODE,
    POD,
    POD_UID,
    POD_WAYS,
    UNTIL,
    since,
)
from hamicommon.ledger.questions.parameters import Parameter, ParameterKind
from hamicommon.ledger.questions.question import Question, columns

_NOT_KEPT = dict.fromkeys(
    ("asked_card_count", "asked_core_ratio"), "the decision was not kept, or came without a request"
)
_NO_SAMPLE = "no sample of this container on this card in the time"

QUESTIONS = (
    Question(
        number=6,
        name="pod-grant",
        title="What did a pod ask for, what did it get, and is it held to that?",
        parameters=(POD_UID, NAMESPACE, POD, AT),
        columns=columns(
            "container_index card_position_index namespace pod_name pod_uid container role state"
            " attempt_count node card_index device_uuid type asked_card_count asked_memory_bytes"
            " asked_memory_ratio asked_core_ratio memory_bytes core_ratio limit_state reserved_at"
            " bound_at allocated_at ended_at",
            unknown=_NOT_KEPT
            | {
                "asked_memory_bytes": "asked for as a share, or not at all, or no longer known",
                "limit_state": "its node has not checked its limits in the 3 minutes before",
            },
            none={
                "asked_memory_ratio": "asked for in bytes",
                "bound_at": "not bound",
                "allocated_at": "not allocated",
                "ended_at": "still held",
            },
        ),
        key=("container_index", "card_position_index"),
        needs=POD_WAYS,
    ),
    Question(
        number=7,
        name="pod-use",
        title="What does each pod use now of what it holds?",
        parameters=(AT, NODE, NAMESPACE),
        columns=columns(
            "namespace pod_name pod_uid allocation_id node state card_count memory_bytes"
            " used_memory_bytes core_ratio used_core_ratio sampled_at",
            unknown={
                "state": "the ledger has no event of it up to the moment",
                **dict.fromkeys(
                    ("used_memory_bytes", "used_core_ratio"),
                    "a slice has no sample of the 90 seconds before",
                ),
                "sampled_at": "no slice has a sample of the 90 seconds before",
            },
        ),
        key=("namespace", "pod_name", "pod_uid", "allocation_id"),
    ),
    Question(
        number=7,
        name="pod-usage",
        title="How much of its cards does a pod use?",
        parameters=(POD_UID, NAMESPACE, POD, since("-15m"), UNTIL),
        columns=columns(
            "container_index card_position_index namespace pod_name pod_uid container node"
            " card_index device_uuid type card_memory_bytes memory_bytes core_ratio"
            " used_memory_bytes used_memory_max_bytes used_core_ratio used_core_max_ratio"
            " sample_count sampled_at",
            unknown=dict.fromkeys(
                (
                    "used_memory_bytes",
                    "used_memory_max_bytes",
                    "used_core_ratio",
                    "used_core_max_ratio",
                    "sampled_at",
                ),
                _NO_SAMPLE,
            ),
        ),
        key=("container_index", "card_position_index"),
        needs=POD_WAYS,
    ),
    Question(
        number=7,
        name="usage-series",
        title="How has use of a node, a card or a pod gone?",
        parameters=(
            Parameter(
                name="node", kind=ParameterKind.TEXT, meaning="the node's name", required=True
            ),
            CARD,
            Parameter(
                name="pod_uid",
                kind=ParameterKind.TEXT,
                meaning="of this pod; without it, of the cards themselves",
            ),
            since("-6h"),
            UNTIL,
        ),
        columns=columns(
            "began_at device_uuid pod_uid container bucket_s namespace pod_name node sample_count"
            " used_memory_bytes used_memory_max_bytes memory_bytes used_core_ratio"
            " used_core_max_ratio",
            unknown=dict.fromkeys(
                (
                    "used_memory_bytes",
                    "used_memory_max_bytes",
                    "memory_bytes",
                    "used_core_ratio",
                    "used_core_max_ratio",
                ),
                "the samples did not have it",
            ),
        ),
        key=("began_at", "device_uuid", "pod_uid", "container"),
    ),
    Question(
        number=8,
        name="limit-state",
        title="Does the limit work?",
        parameters=(since("-7d"), UNTIL, NAMESPACE, NODE, POD_UID),
        columns=columns(
            "began_at finding namespace pod_name pod_uid container node device_uuid state reason"
            " ended_at seen_at memory_bytes used_memory_bytes used_memory_max_bytes evicted_at",
            unknown={"used_memory_bytes": "the driver does not know"},
            none={"ended_at": "still so", "evicted_at": "not evicted"},
        ),
        key=("began_at", "finding"),
        descending=True,
    ),
    Question(
        number=17,
        name="pod-steps",
        title="Which steps did a pod's grant take, and how long was each?",
        parameters=(POD_UID, NAMESPACE, POD, AT),
        columns=columns(
            "step_count entered_at previous_state state reason actor namespace pod_name pod_uid"
            " attempt_count node lasted_s",
            none={"previous_state": "the first step", "lasted_s": "the last step"},
        ),
        key=("step_count",),
        needs=POD_WAYS,
    ),
)
