"""Mask secrets that a text contains by mistake, before it is logged or traced. Pure.

Our own sentences name no secret. Those of libraries may repeat an address with its password, a
header or a key; what looks like one is replaced by `***`, whichever line or span it is in.
"""

from __future__ import annotations

import re

MASK = "***"

# Neither a quote nor a backslash is ever replaced, so a line that is JSON stays JSON.
_LOGIN = re.compile(r"://[^\s/?#\"'\\]*@")
"""User and password in an address (RFC 3986, userinfo)."""
_BEARER = re.compile(r"\b(bearer|basic) +[\w.~+/-]{16,}=*", re.IGNORECASE)
"""Credentials in an Authorization header (RFC 6750, 7617)."""
_JWT = re.compile(r"\beyJ[\w-]{4,}\.[\w-]+\.[\w-]*")
"""Signed token (RFC 7519): three parts of base64url, the first an object."""
_KEY = re.compile(
    r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----(?:(?!-----)[^\"\\]|\\.)*(?:-----END \1PRIVATE KEY-----)?"
)
"""Private key (RFC 7468); one whose end is missing is masked to the end of the text."""
_NAMED = re.compile(r"\b(password|passwd|access_token|api_key)=[^\s&,;\"'\\]+", re.IGNORECASE)
"""Secrets in a libpq string or a query."""
_SIGNS = ("@", "earer", "asic ", "BEARER", "BASIC", "eyJ", "PRIVATE KEY", "=")
"""Substrings of which every text with a secret contains one; most texts have none."""


def mask_secrets(text: str) -> str:
    """Return the text with secrets masked; the same object if there are none."""
    if not any(sign in text for sign in _SIGNS):
        return text
    found = _LOGIN.sub(f"://{MASK}@", text)
    found = _BEARER.sub(rf"\1 {MASK}", found)
    found = _JWT.sub(MASK, found)
    found = _KEY.sub(rf"\1PRIVATE KEY {MASK}", found)
    found = _NAMED.sub(rf"\1={MASK}", found)
    return text if found == text else found
