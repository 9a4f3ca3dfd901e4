"""What node-agents report and ask over NATS."""
