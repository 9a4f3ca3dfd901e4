"""Access to Kubernetes, NATS, Postgres and Redis; their libraries' exceptions are translated."""
