"""The command that makes and renews serving certificates."""
