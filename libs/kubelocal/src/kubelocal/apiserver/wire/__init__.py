"""Decode request bodies in JSON, YAML and protobuf."""
