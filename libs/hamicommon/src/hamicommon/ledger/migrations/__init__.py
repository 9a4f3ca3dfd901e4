"""The schema of the ledger: its revisions, its rights, and what differs from them."""
