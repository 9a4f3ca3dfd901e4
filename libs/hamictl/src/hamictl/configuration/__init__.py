"""What a person would otherwise set in every shell: `hamictl.toml`."""
