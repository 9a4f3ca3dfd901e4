"""Reviews per second of the webhook; `make bench-webhook`."""
