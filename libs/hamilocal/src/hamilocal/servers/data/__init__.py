"""Run PostgreSQL, NATS and Valkey on loopback addresses."""
