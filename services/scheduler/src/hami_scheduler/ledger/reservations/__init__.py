"""Reservations whose node was answered before they are written, and who else reserves."""
