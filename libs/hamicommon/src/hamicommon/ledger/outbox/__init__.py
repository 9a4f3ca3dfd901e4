"""Facts on their way from the ledger to the bus."""
