"""Parts that all services share: HTTP server, sockets, retries, orderly shutdown."""
