"""Web pages for operators: HTML from the ledger, with a stream of changes; read only.

`entry.py` is the entry point; all other modules are imported at the first request of a page. One
module each answers the requests of a page (`overview`, `lists`, `cards`, `pod`, `pending`,
`history`, `showback`), of the charts (`usage`) and of the stream (`live`). `feed.py` keeps the
present cluster while pages are open, `readings.py` reads Postgres, `templates/` define the layout.
"""
