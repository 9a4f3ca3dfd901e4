/* Reserving, booking and releasing: what all memory hooks have in common. */
#include "memory/charge.h"

#include <stdatomic.h>

#include "memory/graph_memory.h"
#include "base/lineage.h"
#include "base/log.h"
#include "memory/overhead.h"
#include "memory/physical.h"
#include "memory/pool.h"
#include "intercept/real.h"
#include "base/process_state.h"
#include "memory/slice.h"

static struct VGPU_WIPED books {
    struct vgpu_ledger ledger;
    _Atomic uint32_t age; /* how many contexts have begun to end */
} books;

int vgpu_memory_current_device(void)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUdevice device;
    if (cuda == NULL || cuda->cuCtxGetDevice(&device) != CUDA_SUCCESS || !vgpu_runtime_start()) return -1;
    return vgpu_runtime_cuda_device(device);
}

const void *vgpu_memory_current_context(void)
{
    CUcontext context = NULL;
    return vgpu_cuda()->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

CUresult vgpu_memory_reserve(int device, uint64_t bytes)
{
    vgpu_overhead_look_if_changed();
    if (vgpu_slice_reserve(device, bytes) == 0) return CUDA_SUCCESS;
    if (vgpu_pool_trim_all(device) && vgpu_slice_reserve(device, bytes) == 0) return CUDA_SUCCESS;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void release(const struct vgpu_block *block)
{
    if (block->pooled)
        vgpu_pool_freed((CUmemoryPool)block->owner, block->device, block->bytes);
    else
        vgpu_slice_release(block->device, block->bytes);
}

static CUresult keep(const struct vgpu_block *block)
{
    struct vgpu_block replaced;
    if (block->device < 0) return CUDA_SUCCESS;
    const int result = vgpu_ledger_put(&books.ledger, block, &replaced);
    if (result == 1) release(&replaced);
    if (result >= 0) return CUDA_SUCCESS;
    release(block);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static uint32_t age_now(void) { return atomic_load_explicit(&books.age, memory_order_acquire); }

uint32_t vgpu_memory_end_begin(void) { return atomic_fetch_add(&books.age, 1); }

CUresult vgpu_memory_keep(enum vgpu_block_kind kind, uint64_t key, int device, uint64_t bytes, const void *owner)
{
    const struct vgpu_block block = {.key = key, .bytes = bytes, .owner = owner, .age = age_now(), .device = (int16_t)device,
                                     .kind = (uint8_t)kind};
    return keep(&block);
}

CUresult vgpu_memory_keep_pooled(CUdeviceptr pointer, int device, uint64_t bytes, CUmemoryPool pool)
{
    const struct vgpu_block block = {.key = pointer, .bytes = bytes, .owner = pool, .age = age_now(), .device = (int16_t)device,
                                     .kind = VGPU_BLOCK_POINTER, .pooled = true};
    return keep(&block);
}

bool vgpu_memory_take(enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *block)
{
    return vgpu_runtime_start() && vgpu_ledger_take(&books.ledger, kind, key, block);
}

void vgpu_memory_settle(const struct vgpu_block *block, CUresult freed)
{
    struct vgpu_block replaced;
    if (freed == CUDA_SUCCESS)
        release(block);
    else if (vgpu_ledger_put(&books.ledger, block, &replaced) < 0)
        vgpu_log(VGPU_LOG_WARN, "no memory to keep a block that the driver did not free; its bytes stay charged");
}

void vgpu_memory_forget_context(CUcontext context, uint32_t begun)
{
    if (context == NULL) return;
    vgpu_ledger_forget_owner(&books.ledger, context, begun, release);
    vgpu_overhead_settle_all();
}

void vgpu_memory_books_are_ours(void)
{
    vgpu_wipe_on_fork(&books, sizeof books);
    vgpu_physical_books_are_ours();
    vgpu_pool_books_are_ours();
    vgpu_graph_memory_books_are_ours();
}
