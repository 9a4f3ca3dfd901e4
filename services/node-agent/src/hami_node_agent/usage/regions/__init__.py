"""libvgpu's shared regions: layout, reader, accounting."""
