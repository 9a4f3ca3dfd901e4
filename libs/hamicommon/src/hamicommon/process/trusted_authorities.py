"""Find out how long a client's TLS context can verify its server.

A client without its own certificate still depends on one that expires: that of the authority that
signed its server's. Authorities are read once, when the context is made. One that is renewed in its
file is used from the process's next start, and the time given here is that of the loaded ones.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime


def trusted_until(context: ssl.SSLContext | None) -> datetime | None:
    """Return the latest expiry of the CA certificates that `context` has loaded.

    The latest, because a renewed authority is trusted beside the old one. None: no TLS, or no
    authority is loaded (OpenSSL reads a directory of them only when it verifies a server).
    """
    if context is None:
        return None
    ends = [str(each["notAfter"]) for each in context.get_ca_certs()]
    if not ends:
        return None
    return datetime.fromtimestamp(max(map(ssl.cert_time_to_seconds, ends)), UTC)
