"""Export the ledger as Prometheus metrics."""
