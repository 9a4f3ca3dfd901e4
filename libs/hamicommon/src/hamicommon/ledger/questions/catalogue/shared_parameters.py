"""Parameters that many questions take."""

from __future__ import annotations

from hamicommon.ledger.questions.parameters import Parameter, ParameterKind

AT = Parameter(
    name="at", kind=ParameterKind.TIME, meaning="the moment that is asked about", default="now"
)
UNTIL = Parameter(
    name="until", kind=ParameterKind.TIME, meaning="end of the time asked about", default="now"
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
    name="memory", kind=ParameterKind.BYTES, meaning="memory wanted of one card", default="0"
)
CORES = Parameter(
    name="cores", kind=ParameterKind.RATIO, meaning="share of one card's cores", default="0"
)


def since(default: str) -> Parameter:
    """Start of a time, inclusive."""
    return Parameter(
        name="since",
        kind=ParameterKind.TIME,
        meaning="start of the time asked about",
        default=default,
    )
