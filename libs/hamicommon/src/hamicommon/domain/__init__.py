"""Values that several services speak about; standard library and numpy only."""
