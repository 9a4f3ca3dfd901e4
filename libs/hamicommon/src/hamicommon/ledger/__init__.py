"""The ledger: tables, connections, outbox."""
