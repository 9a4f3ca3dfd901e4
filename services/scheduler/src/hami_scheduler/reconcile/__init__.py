"""Compare ledger, pods and annotations repeatedly, and repair differences."""
