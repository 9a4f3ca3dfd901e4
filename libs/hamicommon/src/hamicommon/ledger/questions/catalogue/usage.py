"""What namespaces may take, were granted and used; how old the figures are."""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import NAMESPACE, TYPE, UNTIL, since
from hamicommon.ledger.questions.parameters import Parameter, ParameterKind
from hamicommon.ledger.questions.question import Question, columns

_NO_SAMPLES = "no samples came"
_NO_OWNER = "a grant of before owners were recorded, or one restored from its pod"

QUESTIONS = (
    Question(
        number=9,
        name="idle-held",
        title="Who holds a share and does nothing with it?",
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
        title="Is a number true, or missing: how old is each source?",
        parameters=(),
        columns=columns(
            "source last_at expected_s stale age_s known_count late_count",
            unknown={"last_at": "nothing has come yet", "age_s": "nothing has come yet"},
            none=dict.fromkeys(("known_count", "late_count"), "not counted"),
        ),
        key=("source",),
    ),
    Question(
        number=12,
        name="type-use",
        title="How has use of a type of card gone, day by day?",
        parameters=(since("-30d"), UNTIL, TYPE),
        columns=columns(
            "began_at type card_s held_s idle_s cordoned_s unhealthy_s unknown_s held_ratio",
            unknown={"held_ratio": "what the cards were is not known"},
        ),
        key=("began_at", "type"),
        descending=True,
    ),
    Question(
        number=12,
        name="grant-durations",
        title="How long does one use of a card last?",
        parameters=(since("-7d"), UNTIL, TYPE, NAMESPACE),
        columns=columns("type grant_count half_s most_s nearly_all_s longest_s"),
        key=("type",),
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
        number=18,
        name="quota-holders",
        title="Who uses a namespace's quota?",
        parameters=(
            Parameter(
                name="namespace", kind=ParameterKind.TEXT, meaning="the namespace", required=True
            ),
        ),
        columns=columns(
            "memory_bytes pod_uid namespace pod_name node slice_count core_ratio reserved_at"
            " owner_name created_by",
            unknown={"owner_name": _NO_OWNER, "created_by": _NO_OWNER},
        ),
        key=("memory_bytes", "pod_uid"),
        descending=True,
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
