"""/filter over HTTP on a real scheduler process, up to 10,000 nodes; `make bench-filter`."""
