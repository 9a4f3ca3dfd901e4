"""Named questions over HTTP, and who may see what of their answers.

In: a request with a token. `viewers.py` finds out who asks, `asking.py` asks the ledger
(`hamicommon.ledger.questions`) and leaves out what is not theirs to see (`domain/redaction.py`),
`routes.py` is the JSON API, `bills.py` the bill. Pages ask through `Asking` too: both show the same
to the same person.
"""
