"""States of an allocation, and what hangs on them: view, quotas, node locks."""
