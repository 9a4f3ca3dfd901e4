/* Physical memory by handle (cuMemCreate), charged while it is held or used: until its last handle is released, its last mapping is
 * undone and its last binding (multicast object, sparse array) is gone.
 *
 * Whatever ends something is begun before the driver is asked and ended after: the driver may hand the same number out again at once.
 * Handles that this process did not make (imports) are unknown here and stay uncharged: their maker pays.
 *
 * Any thread; not from signal handlers. One lock for all, never held while the driver is called. A fork child finds no
 * handle.
 */
#ifndef VGPU_PHYSICAL_H
#define VGPU_PHYSICAL_H

#include <stdint.h>

#include "cuda_abi.h"

/* A handle was made; its bytes are reserved on `device` (index; negative: an object without memory of its own, such as a multicast
 * object). CUDA_ERROR_OUT_OF_MEMORY: no memory to remember it, and the reservation is gone. */
CUresult vgpu_physical_made(CUmemGenericAllocationHandle handle, int device, uint64_t bytes);

/* The driver handed out the handle once more (cuMemRetainAllocationHandle, an import of what this process exported). */
void vgpu_physical_retained(CUmemGenericAllocationHandle handle);

struct vgpu_physical;
struct vgpu_physical *vgpu_physical_release_begin(CUmemGenericAllocationHandle handle);
void vgpu_physical_release_end(struct vgpu_physical *memory, CUresult released);

/* Mappings. A range may hold several. */
void vgpu_physical_mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle);
struct vgpu_use;
struct vgpu_use *vgpu_physical_unmap_begin(CUdeviceptr address, uint64_t bytes);
void vgpu_physical_unmap_end(struct vgpu_use *mappings, CUresult unmapped);

/* Bindings to an owner (the handle of a multicast object or of an array), at an offset there. */
void vgpu_physical_bound(uint64_t owner, uint64_t at, CUmemGenericAllocationHandle handle);
void vgpu_physical_bound_address(uint64_t owner, uint64_t at, CUdeviceptr address);
void vgpu_physical_unbound(uint64_t owner, int device, uint64_t at, uint64_t bytes);
void vgpu_physical_owner_gone(uint64_t owner);

#endif
