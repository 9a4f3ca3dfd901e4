"""Check limits from outside containers: compare the driver's report per process with grants."""
