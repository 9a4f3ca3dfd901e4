"""Reports and requests of node-agents over NATS."""
