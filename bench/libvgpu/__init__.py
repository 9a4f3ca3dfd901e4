"""Cost of libvgpu per launch, per allocation and per start; `make bench-libvgpu`."""
