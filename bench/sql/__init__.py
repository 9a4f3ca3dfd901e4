"""The questions of docs/sql.md on a full ledger; `make bench-sql`."""
