"""Handle reports and requests of node-agents from NATS."""
