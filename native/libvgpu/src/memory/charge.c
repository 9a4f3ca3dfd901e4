/* Reserving, entering and releasing: what all memory hooks have in common. */
#include "memory/charge.h"

#include <stdatomic.h>

#include "base/wipe_on_fork.h"
#include "base/log.h"
#include "intercept/real.h"
#include "pools/leaving.h"
#include "memory/opened.h"
#include "accounting/overhead.h"
#include "pools/pool.h"
#include "accounting/shared_memory.h"
#include "state/process_state.h"
#include "accounting/slice.h"

static struct VGPU_WIPED charges {
    struct vgpu_block_table table;
    _Atomic uint32_t age; /* how many contexts have begun to end */
} charges;
VGPU_WIPE_ON_FORK(charges);

/* Apart, so that the way of an allocation that fits stays short. */
__attribute__((noinline, cold)) static CUresult reserve_what_others_leave(int device, uint64_t bytes)
{
    int64_t waited_ms = 0;
    bool any = vgpu_overhead_look_before_refusal(device);
    any = vgpu_leaving_let_go(device) || any;
    do {
        any = vgpu_pool_trim_all(device) || any;
        if (any && vgpu_slice_reserve(device, bytes) == 0) return CUDA_SUCCESS;
        any = vgpu_leaving_wait(device, &waited_ms);
    } while (any);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_memory_reserve(int device, uint64_t bytes)
{
    vgpu_overhead_look_before_taking(device, bytes);
    return vgpu_slice_reserve(device, bytes) == 0 ? CUDA_SUCCESS : reserve_what_others_leave(device, bytes);
}

/* What the pool keeps; what other streams have yet to hand to it is looked at before it grows. */
static uint64_t take_kept(const struct vgpu_pooled *wanted, uint64_t bytes)
{
    const uint64_t kept = vgpu_pool_take(wanted->pool, wanted->device, bytes);
    if (kept == bytes || !vgpu_leaving_settle()) return kept;
    vgpu_pool_put_back(wanted->pool, bytes, kept);
    return vgpu_pool_take(wanted->pool, wanted->device, bytes);
}

CUresult vgpu_memory_reserve_pooled(const struct vgpu_pooled *wanted, struct vgpu_reused *reused)
{
    reused->leaving = vgpu_leaving_take(wanted->pool, wanted->device, wanted->stream, wanted->bytes);
    const uint64_t more = wanted->bytes - reused->leaving;
    reused->kept = take_kept(wanted, more);
    const CUresult result = more > reused->kept ? vgpu_memory_reserve(wanted->device, more - reused->kept) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) return result;
    vgpu_pool_put_back(wanted->pool, more, reused->kept);
    if (reused->leaving != 0) vgpu_leaving_add(wanted->pool, wanted->device, reused->leaving, wanted->stream);
    return result;
}

void vgpu_memory_unreserve_pooled(const struct vgpu_pooled *wanted, const struct vgpu_reused *reused)
{
    const uint64_t more = wanted->bytes - reused->leaving;
    vgpu_pool_put_back(wanted->pool, more, reused->kept);
    vgpu_slice_release(wanted->device, more - reused->kept);
    if (reused->leaving != 0) vgpu_leaving_add(wanted->pool, wanted->device, reused->leaving, wanted->stream);
}

/* Bytes of a block of no pool that nobody has open: the others stay charged. */
static uint64_t left_of(const struct vgpu_block *block)
{
    return __builtin_expect(block->exported, 0) ? vgpu_shared_let_go(block->device, block->bytes) : block->bytes;
}

static void release(const struct vgpu_block *block)
{
    if (block->pooled) {
        if (__builtin_expect(block->exported, 0)) vgpu_shared_exported(block->device, 0, block->bytes); /* the pool is charged on */
        vgpu_pool_freed((CUmemoryPool)block->owner, block->device, block->bytes);
        (void)vgpu_pool_look((CUmemoryPool)block->owner); /* freed by a call that waits: the pool may have let go of it */
    } else {
        vgpu_slice_release(block->device, left_of(block));
    }
}

static CUresult keep(const struct vgpu_block *block)
{
    struct vgpu_block replaced;
    if (block->device < 0) return CUDA_SUCCESS;
    const int result = vgpu_block_table_put(&charges.table, block, &replaced);
    if (result == 1) release(&replaced);
    if (result >= 0) return CUDA_SUCCESS;
    release(block);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static uint32_t age_now(void) { return atomic_load_explicit(&charges.age, memory_order_acquire); }

uint32_t vgpu_memory_end_begin(void) { return atomic_fetch_add(&charges.age, 1); }

CUresult vgpu_memory_keep(enum vgpu_block_kind kind, uint64_t key, int device, uint64_t bytes, const void *owner)
{
    const struct vgpu_block block = {
        .key = key, .bytes = bytes, .owner = owner, .age = age_now(), .device = (int16_t)device, .kind = (uint8_t)kind};
    return keep(&block);
}

CUresult vgpu_memory_keep_pooled(CUdeviceptr pointer, const struct vgpu_pooled *wanted, const struct vgpu_reused *reused)
{
    const struct vgpu_block block = {.key = pointer,
                                     .bytes = wanted->bytes,
                                     .owner = wanted->pool,
                                     .age = age_now(),
                                     .device = (int16_t)wanted->device,
                                     .kind = VGPU_BLOCK_POINTER,
                                     .pooled = true};
    vgpu_pool_taken(wanted->pool, wanted->bytes - reused->leaving);
    return keep(&block);
}

bool vgpu_memory_take(enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *block)
{
    return vgpu_state_start() && vgpu_block_table_take(&charges.table, kind, key, block);
}

void vgpu_memory_exported(CUdeviceptr pointer)
{
    struct vgpu_block block;
    CUdeviceptr base;
    size_t bytes;
    if (vgpu_cuda()->cuMemGetAddressRange_v2(&base, &bytes, pointer) != CUDA_SUCCESS) return;
    if (vgpu_block_table_export(&charges.table, VGPU_BLOCK_POINTER, base, &block)) vgpu_shared_exported(block.device, block.bytes, 0);
}

void vgpu_memory_settle(const struct vgpu_block *block, CUresult freed)
{
    struct vgpu_block replaced;
    if (freed == CUDA_SUCCESS)
        release(block);
    else if (vgpu_block_table_put(&charges.table, block, &replaced) < 0)
        vgpu_log(VGPU_LOG_WARN, "no memory to keep a block that the driver did not free; its bytes stay charged");
}

void vgpu_memory_settle_in_stream(const struct vgpu_block *block, CUresult freed, CUstream stream)
{
    if (freed != CUDA_SUCCESS) {
        vgpu_memory_settle(block, freed);
        return;
    }
    if (block->pooled && block->exported) vgpu_shared_exported(block->device, 0, block->bytes);
    const uint64_t left = block->pooled ? block->bytes : left_of(block);
    if (left != 0) vgpu_leaving_add(block->pooled ? (CUmemoryPool)block->owner : NULL, block->device, left, stream);
}

void vgpu_memory_forget_context(CUcontext context, uint32_t begun)
{
    if (context == NULL) return;
    vgpu_leaving_forget_context(context);
    vgpu_pool_look_all(true);
    vgpu_opened_forget_context(context);
    vgpu_block_table_forget_owner(&charges.table, context, begun, release);
    vgpu_overhead_settle_all();
}

void vgpu_memory_pass_context(CUcontext from, CUcontext to, uint32_t begun)
{
    vgpu_leaving_forget_context(from);
    vgpu_pool_look_all(true);
    vgpu_opened_pass_context(from, to);
    vgpu_block_table_pass_owner(&charges.table, from, begun, to);
    vgpu_block_table_forget_owner(&charges.table, from, begun, release); /* its limits */
    vgpu_overhead_settle_all();
}
