"""The ledger as Prometheus samples."""
