"""Keys, users and passwords of an installation on a cluster: made once, never changed."""
