"""hami-scheduler: kube-scheduler's extender, the ledger's writer, and the operators' API."""
