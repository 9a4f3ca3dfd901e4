"""Level-triggered: ledger, pods and annotations compared repeatedly."""
