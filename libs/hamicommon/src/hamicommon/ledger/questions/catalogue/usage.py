"""What namespaces may take, were granted and used."""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import NAMESPACE
from hamicommon.ledger.questions.question import Question, columns

QUESTIONS = (
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
)
