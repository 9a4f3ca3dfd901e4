"""NATS with JetStream: announcing facts, consuming them idempotently, asking and answering."""
