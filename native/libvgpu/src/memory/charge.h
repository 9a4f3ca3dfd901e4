/* Charges of this process: shared by the hooks that allocate and those that free. */
#ifndef VGPU_MEMORY_H
#define VGPU_MEMORY_H

#include "cuda_abi.h"
#include "memory/block_table.h"

/* Index of the device that the current context is on (devices.h; negative: leave the call to the driver). */
int vgpu_memory_current_device(void);

/* The current context, as the owner of what is made in it; NULL: none. */
const void *vgpu_memory_current_context(void);

/* Reserves `bytes`; when the slice is full, trims what pools keep for later first. CUDA_ERROR_OUT_OF_MEMORY: nothing is reserved. */
CUresult vgpu_memory_reserve(int device, uint64_t bytes);

/* Books a successful allocation whose bytes are reserved. On CUDA_ERROR_OUT_OF_MEMORY (no memory for the entry) the reservation is
 * gone and the caller frees the block. Bytes of an old block under the same key, freed behind our back, are released. */
CUresult vgpu_memory_keep(enum vgpu_block_kind kind, uint64_t key, int device, uint64_t bytes, const void *owner);

/* The same for a block that came from a stream-ordered pool. */
CUresult vgpu_memory_keep_pooled(CUdeviceptr block, int device, uint64_t bytes, CUmemoryPool pool);

/* Frees through the driver: forgets the block before (a freed address may be handed out again at once), releases its bytes after, and
 * puts it back if the driver refuses. Unknown blocks go to the driver untouched. */
#define VGPU_MEMORY_FREE(kind, key, real_call)                                                     \
    do {                                                                                           \
        struct vgpu_block block_;                                                                  \
        const bool known_ = vgpu_memory_take((kind), (uint64_t)(key), &block_);                    \
        const CUresult result_ = (real_call);                                                      \
        if (known_) vgpu_memory_settle(&block_, result_);                                          \
        return result_;                                                                            \
    } while (0)

bool vgpu_memory_take(enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *block);
void vgpu_memory_settle(const struct vgpu_block *block, CUresult freed);

/* A context is ended in two halves, as the driver may give its handle, and its addresses, to another thread before it returns: what is
 * booked after `begin` is another context's. `begin` changes nothing that is booked; the second half: the driver has destroyed the context
 * and all memory of it. */
uint32_t vgpu_memory_end_begin(void);
void vgpu_memory_forget_context(CUcontext context, uint32_t begun);

/* Before anything is booked: a fork child finds all books of memory empty, those of pools, graphs and physical memory too, as nothing of
 * the parent's is its own. */
void vgpu_memory_books_are_ours(void);

#endif
