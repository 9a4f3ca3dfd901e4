"""The kubelet's device-plugin API v1beta1."""
