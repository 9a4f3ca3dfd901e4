"""Allocate and PreStartContainer: which grant a container gets, and its response."""
