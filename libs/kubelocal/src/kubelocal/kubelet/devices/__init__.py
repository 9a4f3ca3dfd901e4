"""Device manager: plugins, allocations, checkpoint, CDI, PodResources."""
