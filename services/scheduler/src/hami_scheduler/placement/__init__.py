"""Choose a node, reserve its cards, record the decision, requeue who waits."""
