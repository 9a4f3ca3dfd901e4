"""Web pages for operators: HTML from the ledger, with a stream of changes; read only.

`entry.py` is the door of the service; nothing else here is imported until somebody looks at a page.
One module each answers the requests of a page (`overview`, `lists`, `cards`, `pod`, `pending`,
`history`, `showback`), of the charts (`usage`) and of the stream (`live`). `feed.py` keeps the
present cluster while somebody looks, `readings.py` asks Postgres, `templates/` decide the look.
"""
