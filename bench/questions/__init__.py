"""The named questions on a month of history; `make questions`."""
