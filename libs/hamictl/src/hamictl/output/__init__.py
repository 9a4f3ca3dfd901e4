"""How answers leave: rows as table, JSON, YAML, CSV, names or JSONPath, on standard output."""
