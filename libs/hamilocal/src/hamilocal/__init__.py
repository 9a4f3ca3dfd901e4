"""The local system: servers, services and simulated nodes under one supervisor."""
