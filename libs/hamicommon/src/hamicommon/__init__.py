"""Domain types, engine, wire formats, tables and settings that the HAMi services share."""
