"""PostgreSQL, NATS and Valkey on loopback."""
