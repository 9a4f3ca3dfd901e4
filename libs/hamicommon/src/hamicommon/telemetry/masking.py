"""Secrets that a text may hold by mistake, taken out before it is logged or traced. Pure.

Our own sentences name no secret. Those of libraries may repeat an address with its password, a
header or a key; what looks like one is replaced by `***`, whichever line or span it is in.
"""

from __future__ import annotations

import re

MASK = "***"

# Neither a quote nor a backslash is ever replaced, so a line that is JSON stays JSON.
_LOGIN = re.compile(r"://[^\s/?#\"'\\]*@")
"""User and password of an address (RFC 3986, userinfo)."""
_BEARER = re.compile(r"\b(bearer|basic) +[\w.~+/-]{16,}=*", re.IGNORECASE)
"""Credentials of an Authorization header (RFC 6750, 7617)."""
_JWT = re.compile(r"\beyJ[\w-]{4,}\.[\w-]+\.[\w-]*")
"""A signed token: three parts of base64url, the first an object (RFC 7519)."""
_KEY = re.compile(
    r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----(?:(?!-----)[^\"\\]|\\.)*(?:-----END \1PRIVATE KEY-----)?"
)
"""RFC 7468; one whose end was cut off is masked to the text's end."""
_NAMED = re.compile(r"\b(password|passwd|access_token|api_key)=[^\s&,;\"'\\]+", re.IGNORECASE)
"""Secrets in a libpq string or a query."""
_SIGNS = ("@", "earer", "asic ", "BEARER", "BASIC", "eyJ", "PRIVATE KEY", "=")
"""One of them is in every text that has anything to mask; most lines have none."""


def masked(text: str) -> str:
    """The text without what looks like a secret; the same object where there is none."""
    if not any(sign in text for sign in _SIGNS):
        return text
    found = _LOGIN.sub(f"://{MASK}@", text)
    found = _BEARER.sub(rf"\1 {MASK}", found)
    found = _JWT.sub(MASK, found)
    found = _KEY.sub(rf"\1PRIVATE KEY {MASK}", found)
    found = _NAMED.sub(rf"\1={MASK}", found)
    return text if found == text else found
