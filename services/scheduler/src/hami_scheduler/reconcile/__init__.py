"""Level-triggered: ledger, pods and annotations compared again and again."""
