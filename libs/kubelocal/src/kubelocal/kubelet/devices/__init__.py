"""The device manager: plugins, allocations, checkpoint, CDI, PodResources."""
