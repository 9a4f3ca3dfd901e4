"""Write answers to standard output as table, JSON, YAML, CSV, names or JSONPath."""
