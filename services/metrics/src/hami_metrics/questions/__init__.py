"""Named questions over HTTP, and who may see what of their answers.

In: a request with a token. `questions.asking` finds out who asks, asks the ledger
(`hamicommon.ledger.questions`) and leaves out what is not theirs to see (`domain/redaction.py`);
`questions.routes` is the JSON API and the bill. Pages ask through `Asking` too: both show the same
to the same person.
"""
