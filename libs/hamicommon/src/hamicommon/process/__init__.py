"""What every process of ours does: serve HTTP, listen, stop in order."""
