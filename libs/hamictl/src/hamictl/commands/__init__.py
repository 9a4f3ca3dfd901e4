"""Commands of `hamictl`, one module per group."""
