"""The kubelet's gRPC APIs: device plugin v1beta1 and PodResources v1 (generated stubs)."""
