"""What the agent decides, without I/O: which grant an Allocate means, and who owns an answer."""
