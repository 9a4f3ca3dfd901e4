"""Do ledger, Kubernetes and nodes agree, and who changed what?"""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import NAMESPACE, UNTIL, since
from hamicommon.ledger.questions.parameters import Parameter, ParameterKind
from hamicommon.ledger.questions.question import Audience, Question, columns

QUESTIONS = (
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
        name="ungranted-use",
        title="Is anyone on a card without a grant?",
        parameters=(since("-7d"), UNTIL),
        columns=columns(
            "began_at source finding node device_uuid namespace pod_name pod_uid container detail"
            " ended_at used_memory_max_bytes",
            unknown={"used_memory_max_bytes": "not measured"},
            none=dict.fromkeys(
                ("node", "device_uuid", "namespace", "pod_uid", "container"),
                "found by its pod, not on a card",
            )
            | {"ended_at": "still so"},
        ),
        key=("began_at", "source", "finding"),
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
            unknown={"username": "nobody was asked who calls, or a certificate was shown"},
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
