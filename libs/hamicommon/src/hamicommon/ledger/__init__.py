"""The ledger: tables, engine, outbox."""
