"""Schema of the ledger: apply migrations, grant rights, find differences."""
