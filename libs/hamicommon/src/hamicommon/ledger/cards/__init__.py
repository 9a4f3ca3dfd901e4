"""What grants take from cards and quotas, and what moves change of it."""
