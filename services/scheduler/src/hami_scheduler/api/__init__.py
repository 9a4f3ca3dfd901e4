"""HTTP APIs: queries, explain, simulate, adopt, dead letters."""
