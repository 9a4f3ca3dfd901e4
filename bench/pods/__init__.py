"""From pods at the API server to pods that run: many nodes played by one process."""
