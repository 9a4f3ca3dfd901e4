"""/filter over HTTP on a real scheduler process; `make bench-filter`."""
