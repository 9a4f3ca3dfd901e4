"""One pod: what it asked for and got, what it uses, which step took how long."""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import (
    AT,
    NAMESPACE,
    POD,
    POD_UID,
    POD_WAYS,
)
from hamicommon.ledger.questions.question import Question, columns

QUESTIONS = (
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
