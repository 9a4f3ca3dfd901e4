"""Edge-triggered: what the API server reports, into the ledger."""
