"""hami-webhook."""
