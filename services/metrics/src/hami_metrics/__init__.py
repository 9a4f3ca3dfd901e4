"""hami-metrics."""
