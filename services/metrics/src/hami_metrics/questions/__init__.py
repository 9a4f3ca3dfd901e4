"""Answer named questions over HTTP, hiding what a caller may not see.

In: a request with a token. `questions.asking` finds out who asks, asks the ledger
(`hamicommon.ledger.questions`) and leaves out what is not theirs to see (`domain/redaction.py`);
`questions.routes` is the JSON API and the bill. Pages ask through `Asking` too: both show the same
to the same person.
"""
