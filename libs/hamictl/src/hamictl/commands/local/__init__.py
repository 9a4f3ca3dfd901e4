"""The local system on this machine, and its demo."""
