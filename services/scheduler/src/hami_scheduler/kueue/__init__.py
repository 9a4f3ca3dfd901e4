"""Kueue's admission check `hami.io/fits-as-slices`."""
