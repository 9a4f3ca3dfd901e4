"""Preemption that counts slices: which pods would have to end for another one to fit."""
