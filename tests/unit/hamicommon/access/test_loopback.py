"""Names of this machine, by one parser for every port."""

from __future__ import annotations

import pytest
from hami_metrics.pages.entry import check_bind
from hami_metrics.questions.asking import LocalViewers, Sender
from hamicommon.access.checks import NotAllowed, host_name, is_loopback
from hamicommon.errors import InvalidRequest

OURS = ("localhost", "LOCALHOST:80", "127.0.0.1", "127.8.9.1:9396", "[::1]", "[::1]:9396")
OTHERS = (
    "",
    "evil.example",
    "localhost.evil.example",
    "localhost.",
    "[::1",
    "::1]",
    "a@localhost",
    "localhost:80@evil.example",
    "127.0.0.1:80:80",
    "localhost/",
    "localhost?",
    "[localhost]",
    "0.0.0.0:80",
    "10.0.0.1",
    "[::]:80",
)


@pytest.mark.parametrize("host", OURS)
async def test_names_of_this_machine_are_known_in_every_form(host: str) -> None:
    assert is_loopback(host_name(host))
    await LocalViewers().viewer(Sender(address="127.0.0.1", host=host))


@pytest.mark.parametrize("host", OTHERS)
async def test_what_only_looks_like_one_is_none(host: str) -> None:
    assert not is_loopback(host_name(host))
    with pytest.raises(NotAllowed):
        await LocalViewers().viewer(Sender(address="127.0.0.1", host=host))


def test_the_address_to_bind_is_read_by_the_same_parser() -> None:
    check_bind("localhost:80", "none")
    for bind in (":80", "0.0.0.0:80", "[::]:80", "a@localhost:80"):
        with pytest.raises(InvalidRequest):
            check_bind(bind, "none")
