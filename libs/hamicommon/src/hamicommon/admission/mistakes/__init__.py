"""Probable mistakes of a pod's author: misspelt names, odd requests."""
