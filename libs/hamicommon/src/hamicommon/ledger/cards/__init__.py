"""Amounts that grants take from cards and quotas."""
