"""The named questions on a month of history; `make bench-questions`."""
