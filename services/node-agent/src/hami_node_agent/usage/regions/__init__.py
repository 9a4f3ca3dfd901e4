"""Read libvgpu's shared regions, in which containers account for their use."""
