"""Cache, by row, which pods of a shape fit and which cards they take."""
