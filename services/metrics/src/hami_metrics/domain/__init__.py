"""Values and pure functions of the metrics service."""
