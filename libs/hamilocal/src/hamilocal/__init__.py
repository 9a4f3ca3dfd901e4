"""Local system: servers, services and simulated nodes, run by one supervisor."""
