"""What libvgpu costs per launch, per allocation and per start; `make bench-libvgpu`."""
