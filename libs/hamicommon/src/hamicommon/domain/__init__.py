"""Data types that several services share; standard library and numpy only."""
