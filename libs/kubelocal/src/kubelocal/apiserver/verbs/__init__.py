"""Get, list, watch, create, update, patch, delete, bind."""
