"""Who may do what: RBAC, and the reviews that ask for it."""
