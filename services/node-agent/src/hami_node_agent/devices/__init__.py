"""Facts of hardware: offers, health, topology, MIG layouts. Pure."""
