"""Bodies of requests: JSON, YAML, protobuf."""
