/* Physical memory by handle (cuMemCreate), charged while it is held or used: until its last handle is released, its last mapping is
 * undone (mapping.h) and its last binding (multicast object, logical endpoint, tiles of a sparse array: tiles.h) is gone.
 *
 * Whatever ends something is begun before the driver is asked and ended after: the driver may hand the same number out again at once.
 * What was imported is charged to its maker, which may be this process (a driver gives each import a handle of its own, and nothing shows
 * whose memory it is); that it is open is shown in the region, so that the container goes on being charged when the maker has let go of it
 * (shared_memory.h).
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

/* The driver handed out the handle once more (cuMemRetainAllocationHandle). */
void vgpu_physical_retained(CUmemGenericAllocationHandle handle);

/* A handle was made of it that other processes may import. */
void vgpu_physical_exported(CUmemGenericAllocationHandle handle);

/* A handle was imported, of memory on that device: made here, or by another process. */
void vgpu_physical_imported(CUmemGenericAllocationHandle handle, int device);

struct vgpu_physical;
struct vgpu_physical *vgpu_physical_release_begin(CUmemGenericAllocationHandle handle);
void vgpu_physical_release_end(struct vgpu_physical *memory, CUresult released);

/* Bindings to an owner (the handle of a multicast object or of a logical endpoint), at an offset there. */
void vgpu_physical_bound(uint64_t owner, uint64_t at, CUmemGenericAllocationHandle handle);
void vgpu_physical_unbound(uint64_t owner, int device, uint64_t at, uint64_t bytes);
void vgpu_physical_owner_gone(uint64_t owner);

/* A mapping or a binding of physical memory, which it keeps alive. */
struct vgpu_use {
    uint64_t owner; /* 0: a mapping (mapping.c) */
    uint64_t at, bytes;
    struct vgpu_physical *memory;
    struct vgpu_use *next;
};

/* Gives the lock of handles.h back, and looks at NVML if shared memory came or went with it. */
void vgpu_physical_unlock(void);

/* For mapping.c and tiles.c, with that lock: counts a use (NULL: it is counted for good), ends one, binds what was found (NULL: nothing).
 */
struct vgpu_use *vgpu_use_new(uint64_t owner, uint64_t at, uint64_t bytes, struct vgpu_physical *memory);
void vgpu_use_end(struct vgpu_use *use);
void vgpu_physical_bind(uint64_t owner, uint64_t at, struct vgpu_physical *memory);

#endif
