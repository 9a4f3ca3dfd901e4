"""Where the next page begins, so that only this service can read it: it holds names."""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hamicommon.errors import InvalidRequest

_MOST = 8192
"""Characters of a sealed position."""


class Seal:
    """Seals positions under a key that follows from a secret which all replicas share."""

    def __init__(self, secret: str) -> None:
        key = HKDF(SHA256(), 32, salt=None, info=b"hami-metrics positions").derive(secret.encode())
        self._fernet = Fernet(base64.urlsafe_b64encode(key))

    def close(self, position: str) -> str:
        """For the caller."""
        return self._fernet.encrypt(position.encode()).decode()

    def open(self, sealed: str) -> str:
        """From the caller. Raises: InvalidRequest for what this service has not sealed."""
        try:
            if len(sealed) > _MOST:
                raise InvalidToken
            return self._fernet.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise InvalidRequest(
                "after: it is no page of ours; leave it out to begin with the first"
            ) from None
