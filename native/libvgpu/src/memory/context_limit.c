#include "memory/context_limit.h"

#include "base/mutex.h"
#include "base/wipe_on_fork.h"
#include "intercept/real.h"
#include "memory/charge.h"
#include "accounting/current.h"
#include "accounting/overhead.h"
#include "accounting/slice.h"

/* CUlimit */
enum { STACK = 0, PRINTF_BUFFER = 1, MALLOC_HEAP = 2 };

/* Held while a limit is changed, so that two threads do not both take what was charged before. */
static struct VGPU_WIPED changing {
    struct vgpu_mutex lock;
} changing;
VGPU_WIPE_ON_FORK(changing);

/* Contexts lie further apart than there are limits. */
static uint64_t key_of(const void *context, int limit) { return (uint64_t)(uintptr_t)context + (uint64_t)limit; }

static uint64_t beyond(uint64_t value, uint64_t base) { return value > base ? value - base : 0; }

/* The driver's own size is what the context has while nothing is charged for it. */
static CUresult set_charged(int limit, size_t value, int device, const void *context)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    size_t now = 0;
    if (cuda->cuCtxGetLimit(&now, limit) != CUDA_SUCCESS) return cuda->cuCtxSetLimit(limit, value);
    struct vgpu_block block = {.bytes = 0};
    const bool known = vgpu_memory_take(VGPU_BLOCK_LIMIT, key_of(context, limit), &block);
    const uint64_t charged = known ? block.bytes : 0, wanted = beyond(value, beyond(now, charged));
    CUresult result = wanted > charged ? vgpu_memory_reserve(device, wanted - charged) : CUDA_SUCCESS;
    const bool reserved = result == CUDA_SUCCESS;
    if (reserved) result = cuda->cuCtxSetLimit(limit, value);
    const uint64_t left = result == CUDA_SUCCESS ? wanted : charged;
    const uint64_t have = reserved && wanted > charged ? wanted : charged;
    if (have > left) vgpu_slice_release(device, have - left);
    if (left != 0) (void)vgpu_memory_keep(VGPU_BLOCK_LIMIT, key_of(context, limit), device, left, context);
    return result;
}

static CUresult set_seen(int limit, size_t value)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    size_t now = 0;
    const bool known = cuda->cuCtxGetLimit(&now, limit) == CUDA_SUCCESS;
    const struct vgpu_overhead_before before = vgpu_overhead_before();
    const CUresult result = cuda->cuCtxSetLimit(limit, value);
    if (result != CUDA_SUCCESS || vgpu_overhead_fits(&before)) return result;
    if (known) (void)cuda->cuCtxSetLimit(limit, now);
    vgpu_overhead_settle_current();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_context_limit_set(int limit, size_t value)
{
    const bool concerned = limit == STACK || limit == PRINTF_BUFFER || limit == MALLOC_HEAP;
    const int device = concerned ? vgpu_memory_current_device() : -1;
    const void *context = device >= 0 ? vgpu_memory_current_context() : NULL;
    if (context == NULL) return vgpu_cuda()->cuCtxSetLimit(limit, value);
    vgpu_mutex_lock(&changing.lock);
    const CUresult result = limit == STACK ? set_seen(limit, value) : set_charged(limit, value, device, context);
    vgpu_mutex_unlock(&changing.lock);
    return result;
}
