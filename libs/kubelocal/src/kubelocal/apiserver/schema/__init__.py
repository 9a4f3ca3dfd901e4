"""Which resources are served and what their objects may hold."""
