"""Rules per kind: defaults, spec and status, and patches."""
