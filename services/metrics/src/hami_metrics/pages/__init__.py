"""The operators' pages: HTML over the ledger, with a stream of changes; read only.

`entry.py` is what the service opens; nothing else here is imported until somebody looks at a page.
`web/` answers requests, `feed.py` keeps the cluster in memory while somebody looks, `reading/` asks
Postgres, `views/` decides what a page shows, `templates/` how.
"""
