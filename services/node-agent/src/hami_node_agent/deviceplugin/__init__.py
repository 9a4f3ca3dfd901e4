"""Device plugins for the kubelet (API v1beta1)."""
