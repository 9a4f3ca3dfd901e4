"""hami-scheduler."""
