"""Find out how long a client's TLS context can verify its server.

A client without a certificate of its own still ends with one: with the authority that signed its
server's. Authorities are read once, when the context is made, so one that was renewed in its file
counts from the process's next start, and the time given here is of what is loaded.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime


def trusted_until(context: ssl.SSLContext | None) -> datetime | None:
    """Return the latest expiry of the CA certificates that `context` has loaded.

    The last, because a renewed authority is trusted beside the old one. None: no TLS, or no
    authority is loaded (a directory of them is read by OpenSSL only when a server is verified).
    """
    if context is None:
        return None
    ends = [str(each["notAfter"]) for each in context.get_ca_certs()]
    if not ends:
        return None
    return datetime.fromtimestamp(max(map(ssl.cert_time_to_seconds, ends)), UTC)
