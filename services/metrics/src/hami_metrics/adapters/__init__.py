"""Access of the metrics service to Postgres, and to servers' certificates."""
