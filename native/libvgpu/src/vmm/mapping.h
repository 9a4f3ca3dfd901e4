/* Mappings of physical memory into the program's addresses: each holds its memory (physical.h). Any thread; not from signal handlers. */
#ifndef VGPU_MAPPING_H
#define VGPU_MAPPING_H

#include <stdint.h>

#include "cuda_abi.h"

/* The driver mapped the memory of that handle there. */
void vgpu_physical_mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle);

/* A range may hold several mappings. Begun before the driver is asked, ended with its answer. */
struct vgpu_use;
struct vgpu_use *vgpu_physical_unmap_begin(CUdeviceptr address, uint64_t bytes);
void vgpu_physical_unmap_end(struct vgpu_use *taken, CUresult unmapped);

/* The memory whose mapping has that address in it is bound to an owner, at an offset there (physical.h). */
void vgpu_physical_bound_address(uint64_t owner, uint64_t at, CUdeviceptr address);

#endif
