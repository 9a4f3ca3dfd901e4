/* Charges of this process: shared by the hooks that allocate and those that free.
 *
 * Any thread, with no lock of this library held; not from signal handlers. A fork child finds no charge: what the parent holds is not its
 * own.
 */
#ifndef VGPU_CHARGE_H
#define VGPU_CHARGE_H

#include "cuda_abi.h"
#include "accounting/block_table.h"

/* Reserves `bytes`; when the slice is full, trims what pools keep for later first, and waits for what streams have yet
 * to free. CUDA_ERROR_OUT_OF_MEMORY: nothing is reserved. */
CUresult vgpu_memory_reserve(int device, uint64_t bytes);

/* The same for an allocation from a stream-ordered pool. `reused` are the bytes that were charged already: the pool kept
 * them, or the same stream is about to free them; the others are reserved. Undone, where the driver then makes no such
 * allocation, by vgpu_memory_unreserve_pooled with the same arguments. */
struct vgpu_pooled {
    CUmemoryPool pool;
    int device;
    uint64_t bytes;
    CUstream stream;
};
struct vgpu_reused {
    uint64_t kept, leaving;
};
CUresult vgpu_memory_reserve_pooled(const struct vgpu_pooled *wanted, struct vgpu_reused *reused);
void vgpu_memory_unreserve_pooled(const struct vgpu_pooled *wanted, const struct vgpu_reused *reused);

/* Enters a successful allocation whose bytes are reserved. On CUDA_ERROR_OUT_OF_MEMORY (no memory for the entry) the
 * reservation is gone and the caller frees the block. Bytes of an old block under the same key, freed behind our back,
 * are released. */
CUresult vgpu_memory_keep(enum vgpu_block_kind kind, uint64_t key, int device, uint64_t bytes, const void *owner);

/* The same for a block that came from a stream-ordered pool. */
CUresult vgpu_memory_keep_pooled(CUdeviceptr block, const struct vgpu_pooled *wanted, const struct vgpu_reused *reused);

/* A free through the driver: `take` forgets the block before it (a freed address may be handed out again at once), `settle` releases its
 * bytes after, or puts it back if the driver refuses. false: the block is not known, and the driver's own affair. */
bool vgpu_memory_take(enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *block);
void vgpu_memory_settle(const struct vgpu_block *block, CUresult freed);

/* The same after a free in a stream: charged until the stream is there (leaving.h). */
void vgpu_memory_settle_in_stream(const struct vgpu_block *block, CUresult freed, CUstream stream);

/* Another process may open the block that an address lies in. */
void vgpu_memory_exported(CUdeviceptr pointer);

/* A context is ended in two halves, as the driver may give its handle, and its addresses, to another thread before it
 * returns: what is entered after `begin` is another context's. `begin` changes nothing that is entered; the second
 * half: the driver has destroyed the context and all memory of it. */
uint32_t vgpu_memory_end_begin(void);
void vgpu_memory_forget_context(CUcontext context, uint32_t begun);

/* The other second half: the context has ended, and its memory lives on until it is freed or `to` ends. */
void vgpu_memory_pass_context(CUcontext from, CUcontext to, uint32_t begun);

#endif
