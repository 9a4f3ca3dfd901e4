"""Cost of usage from the bus to Postgres, beside a bare COPY; `make bench-usage`."""
