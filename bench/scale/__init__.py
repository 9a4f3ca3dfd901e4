"""10,000 played nodes on one real scheduler; `make bench-scale`."""
