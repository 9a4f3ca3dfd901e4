"""Do ledger, Kubernetes and nodes agree, and who changed what?"""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import UNTIL, since
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
)
