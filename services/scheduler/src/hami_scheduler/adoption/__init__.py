"""Pods that we did not place: adopted from HAMi, or by their ResourceClaims."""
