"""Why a pod is where it is, or waits: from what was stored with the decision. Pure."""
