"""What there is, who holds it, who held it, and which cards were sick."""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import (
    AT,
    CARD,
    NAMESPACE,
    NODE,
    TYPE,
    UNTIL,
    since,
)
from hamicommon.ledger.questions.parameters import Parameter, ParameterKind
from hamicommon.ledger.questions.question import Question, columns

SLICE = columns(
    "namespace pod_name pod_uid container role node card_index device_uuid type memory_bytes"
    " core_ratio state reason reserved_at ended_at allocation_id attempt_count owner_kind"
    " owner_name",
    unknown={
        "owner_kind": "a grant of before owners were recorded, or one restored from its pod",
        "owner_name": "a grant of before owners were recorded, or one restored from its pod",
        "state": "the ledger has no event of it up to the moment",
        "reason": "the ledger has no event of it up to the moment",
    },
    none={"ended_at": "still held then"},
)

QUESTIONS = (
    Question(
        number=5,
        name="nodes",
        title="Which nodes are there, and how full is each?",
        parameters=(AT, NODE),
        columns=columns(
            "node card_count sick_card_count cordoned_card_count held_card_count memory_bytes"
            " held_memory_bytes core_cards_ratio held_core_cards_ratio slot_count held_slot_count"
            " slice_count type source heard_at node_group",
            unknown={"heard_at": "no agent has reported this node yet"},
            none={"node_group": "its Node object has none of HAMI_SCHEDULER_NODE_GROUP_LABELS"},
        ),
        key=("node",),
    ),
    Question(
        number=5,
        name="cards",
        title="Which cards are there, and what is granted and used of each?",
        parameters=(AT, NODE, TYPE, CARD),
        columns=columns(
            "node card_index device_uuid vendor type memory_bytes held_memory_bytes"
            " used_memory_bytes core_ratio held_core_ratio used_core_ratio slot_count"
            " held_slot_count pod_count healthy health_reason cordoned since_at sampled_at",
            unknown=dict.fromkeys(
                ("used_memory_bytes", "used_core_ratio", "sampled_at"),
                "no sample of the card in the 90 seconds before",
            ),
        ),
        key=("node", "card_index", "device_uuid"),
    ),
    Question(
        number=5,
        name="what-runs-where",
        title="Who holds which card, and how much of it?",
        parameters=(
            AT,
            NODE,
            CARD,
            NAMESPACE,
            Parameter(name="pod", kind=ParameterKind.TEXT, meaning="only pods of this name"),
        ),
        columns=SLICE,
        key=("node", "card_index", "device_uuid", "allocation_id", "container"),
    ),
    Question(
        number=11,
        name="who-held-card",
        title="Who was on a card, or a node, and when?",
        parameters=(CARD, NODE, NAMESPACE, since("-7d"), UNTIL),
        columns=SLICE,
        key=("reserved_at", "allocation_id", "container", "device_uuid"),
        descending=True,
        needs=(frozenset({"card"}), frozenset({"node"})),
    ),
    Question(
        number=11,
        name="changes",
        title="What changed, step by step?",
        parameters=(since("-1h"), UNTIL, NODE, NAMESPACE),
        columns=columns(
            "changed_at change previous_state state reason actor namespace pod_name pod_uid"
            " attempt_count node allocation_id",
            none={"previous_state": "the first step"},
        ),
        key=("changed_at", "change"),
        descending=True,
    ),
    Question(
        number=11,
        name="change-density",
        title="When did how much change?",
        parameters=(
            since("-1h"),
            UNTIL,
            Parameter(
                name="step",
                kind=ParameterKind.DURATION,
                meaning="length of a piece of time",
                default="1m",
            ),
        ),
        columns=columns("began_at change_count reserved_count ended_count"),
        key=("began_at",),
    ),
    Question(
        number=15,
        name="card-incidents",
        title="Which card was bad, and is it back?",
        parameters=(since("-7d"), UNTIL, CARD, NODE),
        columns=columns(
            "sick_at device_uuid node card_index type health_reason well_at sick_s pod_count",
            none={"well_at": "still sick"},
        ),
        key=("sick_at", "device_uuid"),
        descending=True,
    ),
    Question(
        number=15,
        name="pods-hit",
        title="Whom did a bad card hit?",
        parameters=(since("-7d"), UNTIL, CARD, NODE),
        columns=columns(
            "sick_at device_uuid pod_uid container node health_reason well_at namespace pod_name"
            " state began_at ended_at",
            none={"well_at": "still sick", "ended_at": "still on it"},
        ),
        key=("sick_at", "device_uuid", "pod_uid", "container"),
        descending=True,
    ),
)
