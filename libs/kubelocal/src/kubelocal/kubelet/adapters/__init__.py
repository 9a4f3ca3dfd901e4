"""What talks gRPC: device plugins, the registration service, PodResources."""
