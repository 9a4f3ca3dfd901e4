"""Implement get, list, watch, create, update, patch, delete and bind."""
