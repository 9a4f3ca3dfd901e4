"""Sockets to listen on."""

import asyncio
import socket

import pytest
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.listening_socket import listen, parse_bind


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":9395", ("0.0.0.0", 9395)),
        ("[::1]:0", ("::1", 0)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_bind(text) == address


@pytest.mark.parametrize("text", ["", "80", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="host:port is wanted"):
        parse_bind(text)


def test_an_address_in_use_is_one_sentence() -> None:
    with listen("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"can't listen on 127.0.0.1:{port}"):
            listen(f"127.0.0.1:{port}")


async def test_an_answer_waits_for_no_acknowledgement_of_its_head() -> None:
    with listen("127.0.0.1:0") as listening:
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        _, writer = await asyncio.open_connection(*listening.getsockname())
        accepted, _ = await loop.sock_accept(listening)
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        await writer.wait_closed()
