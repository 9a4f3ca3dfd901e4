"""Answer named questions over HTTP, hiding what a caller may not see.

Input: a request with a token. `questions.asking` identifies the caller, queries the ledger
(`hamicommon.ledger.questions`) and omits what the caller may not see (`domain/redaction.py`);
`questions.routes` is the JSON API and the bill. Pages use `Asking` too, so both show the same to
the same user.
"""
