"""Common parts of every process: serving HTTP, listening, stopping in order."""
