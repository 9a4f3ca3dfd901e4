"""Whether a name is one of this machine: of a `Host` header, or of an address to bind.

Ports that ask nobody for a token answer under such names alone: a page of another site can have a
browser on this machine call them, under a name of its own that it points here.
"""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")


def host_name(host: str) -> str:
    """Return the name or address in `host[:port]`, in lower case and without brackets.

    Returns the empty string for what is no such thing, `user@localhost` for example.
    """
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found[1] or found[2]


def is_loopback(name: str) -> bool:
    """Return whether `localhost` or an address of the loopback device is named."""
    return name == "localhost" or is_loopback_address(name)


def is_loopback_address(address: str) -> bool:
    """Return whether it is an address of the loopback device."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
