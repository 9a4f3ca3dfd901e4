"""Grant slices to pods that this scheduler did not place: HAMi's, or by their ResourceClaims."""
