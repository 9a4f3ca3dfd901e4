"""Facts about hardware: offers, health, topology, MIG. Pure."""
