"""What a person would otherwise set in every shell: `~/.config/hamictl.toml`."""
