"""The operator's HTTP API: queries, explain, simulate, adopt, dead letters."""
