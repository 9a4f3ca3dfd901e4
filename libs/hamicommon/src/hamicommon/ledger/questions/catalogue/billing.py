"""Whose the cards' time was, and whether it adds up."""

from __future__ import annotations

from hamicommon.ledger.questions.catalogue.shared_parameters import UNTIL, since
from hamicommon.ledger.questions.parameters import Parameter, ParameterKind
from hamicommon.ledger.questions.question import Question, columns

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

QUESTIONS = (
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
