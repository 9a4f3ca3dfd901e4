"""What the use cases need of the world, in domain terms; `adapters/` has how."""
