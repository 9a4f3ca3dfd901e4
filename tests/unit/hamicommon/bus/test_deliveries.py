"""The scheduler's acknowledgements for the readers of deliveries."""

from __future__ import annotations

import pytest
from hamicommon.bus.deliveries import REFUSALS, USAGE, Acknowledgements, acknowledgements
from hamicommon.bus.pull import Settlement
from hamicommon.errors import InvalidRequest

REPLY = "$JS.ACK.HAMI_USAGE.metrics-usage.1.2.3.1795968691852064022.4"


def settled_payload(*replies: str) -> bytes:
    messages = tuple((reply, Settlement.DONE) for reply in replies)
    return Acknowledgements(messages=messages).model_dump_json().encode()


def test_each_outcome_is_an_acknowledgement_of_its_own() -> None:
    settling = Acknowledgements(messages=tuple((REPLY, outcome) for outcome in Settlement))
    found = acknowledgements(USAGE.settled_subject, settling.model_dump_json().encode())
    assert {reply for reply, _ in found} == {REPLY}
    assert [body for _, body in found] == [
        b"+ACK",
        b'-NAK {"delay": 1000000000}',
        b"-NAK",
        b"+TERM",
    ]


@pytest.mark.parametrize(
    "reply",
    [
        REPLY.replace("metrics-usage", "scheduler-usage"),
        REPLY.replace("HAMI_USAGE", "HAMI_REPORTS"),
        REPLY.replace(".1.2.", ".1.*."),
        REPLY + ".5",
        REPLY + "\r\nPUB hami.grants.v1.a 0",
        "$JS.ACK.HAMI_USAGE.metrics-usage.>",
        "$JS.API.STREAM.DELETE.HAMI_USAGE",
        "hami.reports.v1.a",
        "",
    ],
)
def test_nothing_but_messages_of_the_own_consumer_is_acknowledged(reply: str) -> None:
    with pytest.raises(InvalidRequest, match=r"settles no message of"):
        acknowledgements(USAGE.settled_subject, settled_payload(REPLY, reply))


def test_one_consumer_does_not_settle_for_another() -> None:
    with pytest.raises(InvalidRequest):
        acknowledgements(REFUSALS.settled_subject, settled_payload(REPLY))
    with pytest.raises(InvalidRequest, match="settles no consumer"):
        acknowledgements("hami.settled.v1.scheduler-reports", settled_payload(REPLY))
