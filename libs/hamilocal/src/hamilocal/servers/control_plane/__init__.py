"""A real or emulated control plane on loopback."""
