"""Catalogue of questions: title, parameters, columns and key of each; the SQL is in `sql`."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from operator import attrgetter
from types import MappingProxyType

from hamicommon.errors import NotFound
from hamicommon.ledger.questions.question import (
    Audience,
    Parameter,
    ParameterKind,
    Question,
    columns,
)

AT = Parameter(name="at", kind=ParameterKind.TIME, meaning="the time of the answer", default="now")
UNTIL = Parameter(
    name="until", kind=ParameterKind.TIME, meaning="end of the time range", default="now"
)
NODE = Parameter(name="node", kind=ParameterKind.TEXT, meaning="only this node")
NAMESPACE = Parameter(name="namespace", kind=ParameterKind.TEXT, meaning="only this namespace")
CARD = Parameter(name="card", kind=ParameterKind.TEXT, meaning="only the card with this UUID")
TYPE = Parameter(name="type", kind=ParameterKind.TEXT, meaning="only cards of this type")
POD_UID = Parameter(name="pod_uid", kind=ParameterKind.TEXT, meaning="the pod's uid")
POD = Parameter(
    name="pod",
    kind=ParameterKind.TEXT,
    meaning="the pod's name, with its namespace; the newest of that name",
)
POD_WAYS = (frozenset({"pod_uid"}), frozenset({"namespace", "pod"}))
MEMORY = Parameter(
    name="memory", kind=ParameterKind.BYTES, meaning="memory needed on one card", default="0"
)
CORES = Parameter(
    name="cores", kind=ParameterKind.RATIO, meaning="share of one card's cores", default="0"
)


def since(default: str) -> Parameter:
    """Return the parameter for the start of a period, inclusive."""
    return Parameter(
        name="since",
        kind=ParameterKind.TIME,
        meaning="start of the time range",
        default=default,
    )


_NO_REQUEST = "the decision was recorded without its request"
_ASKED = {
    "card_count": _NO_REQUEST,
    "memory_bytes": "the pod asked for a share of a card, or for none of its memory",
    "core_ratio": _NO_REQUEST,
}
_NOT_TRACED = {"trace_id": "the decision was not traced"}
_NOT_A_SHARE = {"memory_ratio": "asked for in bytes"}

WAITING = (
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
        number=3,
        name="scale-wishes",
        title="Which nodes do waiting pods need, and what became of others?",
        parameters=(since("-1d"), UNTIL),
        columns=columns(
            "wanted_at wish type state pod_count node reason asked_at ended_at",
            none={
                "node": "none has come",
                "asked_at": "no autoscaler was asked",
                "ended_at": "not over",
            },
        ),
        key=("wanted_at", "wish"),
        descending=True,
        audience=Audience.CLUSTER,
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

CARDS = (
    Question(
        number=5,
        name="nodes",
        title="Which nodes are there, and how full is each?",
        parameters=(AT, NODE),
        columns=columns(
            "node card_count sick_card_count cordoned_card_count held_card_count memory_bytes"
            " held_memory_bytes core_cards_ratio held_core_cards_ratio slot_count held_slot_count"
            " slice_count type cordoned source heard_at node_group",
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
        number=15,
        name="card-incidents",
        title="Which cards were unhealthy, and when?",
        parameters=(since("-7d"), UNTIL, CARD, NODE),
        columns=columns(
            "sick_at device_uuid node card_index type health_reason well_at sick_s pod_count",
            none={"well_at": "still sick"},
        ),
        key=("sick_at", "device_uuid"),
        descending=True,
    ),
)


_NO_SAMPLE = "no sample of this container on this card in the time"

PODS = (
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
        title="How did the use of a node, a card or a pod develop?",
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
        title="Are the limits enforced?",
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


_NO_SAMPLES = "no samples came"

USAGE = (
    Question(
        number=9,
        name="idle-held",
        title="Who holds an idle slice?",
        parameters=(since("-24h"), UNTIL, NAMESPACE),
        columns=columns(
            "idle_gib_hour_count namespace owner_name pod_count idle_s sampled_s unknown_s"
            " idle_ratio",
            unknown={"idle_ratio": "whether cores were used is not known of any hour"},
        ),
        key=("idle_gib_hour_count", "namespace", "owner_name"),
        descending=True,
    ),
    Question(
        number=10,
        name="figures-as-of",
        title="How old is the data of each source?",
        parameters=(),
        columns=columns(
            "source last_at expected_s stale age_s known_count late_count",
            unknown={"last_at": "nothing has come yet", "age_s": "nothing has come yet"},
            none=dict.fromkeys(("known_count", "late_count"), "not counted"),
        ),
        key=("source",),
    ),
    Question(
        number=13,
        name="namespace-use",
        title="What did each namespace use of what it was granted?",
        parameters=(since("-30d"), UNTIL, NAMESPACE),
        columns=columns(
            "namespace slice_s memory_bytes core_ratio used_memory_bytes used_core_ratio"
            " sample_count idle_s",
            unknown={
                "idle_s": f"{_NO_SAMPLES}, or an hour was not summed up yet",
                "memory_bytes": "nothing was held",
                "core_ratio": "nothing was held",
                "used_memory_bytes": _NO_SAMPLES,
                "used_core_ratio": _NO_SAMPLES,
            },
        ),
        key=("namespace",),
    ),
    Question(
        number=18,
        name="quota",
        title="How much of a quota is left?",
        parameters=(NAMESPACE,),
        columns=columns(
            "namespace resource limit_amount used_amount left_amount since_at",
            none={"limit_amount": "no limit", "left_amount": "no limit", "since_at": "no limit"},
        ),
        key=("namespace", "resource"),
    ),
    Question(
        number=19,
        name="overasked",
        title="Who asks for far more than they use?",
        parameters=(
            since("-7d"),
            UNTIL,
            NAMESPACE,
            Parameter(
                name="least",
                kind=ParameterKind.COUNT,
                meaning="hours with samples that an owner must have",
                default="24",
            ),
        ),
        columns=columns(
            "sort_ratio namespace owner_name used_ratio memory_bytes used_memory_bytes hour_count"
            " pod_count",
            unknown={"used_ratio": _NO_SAMPLES, "used_memory_bytes": _NO_SAMPLES},
        ),
        key=("sort_ratio", "namespace", "owner_name"),
    ),
)


BASIS = Parameter(
    name="basis",
    kind=ParameterKind.TEXT,
    meaning="of what a slice is a share: memory, cores, slots, or memory and cores mixed",
    default="memory",
    choices=("memory", "cores", "slots", "mixed"),
)
WEIGHT = Parameter(
    name="weight",
    kind=ParameterKind.RATIO,
    meaning="of the mixed basis: the share that memory has in it",
    default="0.5",
)

BILLING = (
    Question(
        number=13,
        name="showback",
        title="What did each namespace hold, and what became of the rest?",
        parameters=(since("-30d"), UNTIL, BASIS, WEIGHT),
        columns=columns("type kind namespace card_s"),
        key=("type", "kind", "namespace"),
    ),
    Question(
        number=14,
        name="showback-sum",
        title="Does the bill add up to the cards?",
        parameters=(since("-30d"), UNTIL, BASIS, WEIGHT),
        columns=columns(
            "type card_s held_s idle_s stranded_s cordoned_s unhealthy_s unknown_s agrees"
            " summed_at",
            unknown={"summed_at": "no hour has been summed up yet"},
        ),
        key=("type",),
    ),
)


AUDIT = (
    Question(
        number=16,
        name="drift",
        title="Do ledger, Kubernetes and nodes agree?",
        parameters=(
            since("-7d"),
            UNTIL,
            Parameter(name="class", kind=ParameterKind.TEXT, meaning="only this class of drift"),
        ),
        columns=columns("found_at finding drift_class subject detail repaired"),
        key=("found_at", "finding"),
        descending=True,
        audience=Audience.CLUSTER,
    ),
    Question(
        number=20,
        name="operator-calls",
        title="Who changed what by a call?",
        parameters=(
            since("-30d"),
            UNTIL,
            Parameter(name="verb", kind=ParameterKind.TEXT, meaning="only calls of this verb"),
        ),
        columns=columns(
            "called_at call username source verb object outcome message attempt_count ended_at",
            unknown={"username": "the caller was not identified, or used a client certificate"},
            none={"ended_at": "not ended, or cut off"},
        ),
        key=("called_at", "call"),
        descending=True,
        audience=Audience.CLUSTER,
    ),
    Question(
        number=20,
        name="refusals",
        title="Who was refused at admission, and why?",
        parameters=(since("-7d"), UNTIL, NAMESPACE),
        columns=columns(
            "refused_at finding username namespace pod_name owner_kind owner_name operation"
            " reason_code message attempt_count"
        ),
        key=("refused_at", "finding"),
        descending=True,
    ),
)


@cache
def questions() -> MappingProxyType[str, Question]:
    """Return all questions by name, in the order of their numbers."""
    found = (*WAITING, *CARDS, *PODS, *USAGE, *BILLING, *AUDIT)
    return MappingProxyType({each.name: each for each in sorted(found, key=attrgetter("number"))})


def question(name: str) -> Question:
    """Return the question of this name. Raises: NotFound, with the nearest name."""
    try:
        return questions()[name]
    except KeyError:
        near = get_close_matches(name[:60], questions(), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise NotFound(f"there is no question {name[:60]!r}{meant}") from None
