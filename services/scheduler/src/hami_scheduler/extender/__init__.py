"""kube-scheduler's three verbs: filter, prioritize, bind."""
