"""States of allocations, the cluster's state in memory, quotas, and node locks."""
