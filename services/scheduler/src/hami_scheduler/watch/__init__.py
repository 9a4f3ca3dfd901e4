"""Watch the API server, and apply changes to the ledger."""
