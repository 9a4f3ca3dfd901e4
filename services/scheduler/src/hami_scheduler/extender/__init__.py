"""Extender calls of kube-scheduler: filter, bind, preempt, and scores for pods without cards."""
