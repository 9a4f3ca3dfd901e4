"""The rules that an object must keep, one module per part; each returns the broken ones."""
