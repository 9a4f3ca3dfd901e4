"""kube-scheduler's calls: filter, bind, preempt, and scores for pods without cards."""
