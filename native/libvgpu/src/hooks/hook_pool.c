/* Stream-ordered memory: charged while it is live, until the stream that frees it is there, and as long as its pool keeps it.
 * It outlives contexts.
 *
 * While a stream records a graph nothing is allocated: the call becomes a node, and the graph is charged when it runs.
 *
 * When the program has waited for the device, the card has again what streams have freed by then and pools do not keep, and that is no
 * longer charged (pools/leaving.h, pools/pool.h): WAIT.
 */
#include "config/devices.h"
#include "accounting/current.h"
#include "compute/cores.h"
#include "memory/charge.h"
#include "pools/leaving.h"
#include "memory/opened.h"
#include "pools/pool.h"
#include "intercept/real.h"
#include "state/process_state.h"

typedef CUresult (*stream_status)(CUstream, int *);
typedef CUresult (*stream_free)(CUdeviceptr, CUstream);

static bool records(stream_status is_capturing, CUstream stream)
{
    int status;
    return is_capturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The pool that a stream's device takes from. */
static CUmemoryPool pool_of(CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUmemoryPool pool = NULL;
    CUdevice device;
    /* A stream of one's own may be on another device than the current context; drivers before 12.8 cannot answer
     * that. */
    const bool own = (uintptr_t)stream > 2;
    if ((!own || cuda->cuStreamGetDevice(stream, &device) != CUDA_SUCCESS) && cuda->cuCtxGetDevice(&device) != CUDA_SUCCESS) return NULL;
    return cuda->cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS ? pool : NULL;
}

/* An allocation from a pool; `counted` false: it is the driver's own affair. */
struct allocation {
    struct vgpu_pooled wanted;
    struct vgpu_reused reused;
    bool counted;
};

/* Whether the call allocates: while a stream records, or where nothing is asked for, nothing is. */
static bool allocates(const CUdeviceptr *pointer, size_t bytes, stream_status is_capturing, CUstream stream)
{
    return pointer != NULL && bytes != 0 && vgpu_state_start() != NULL && !records(is_capturing, stream);
}

static CUresult begin(struct allocation *allocation, CUmemoryPool pool, size_t bytes, CUstream stream)
{
    const int device = pool != NULL ? vgpu_pool_device(pool) : VGPU_DEVICE_UNKNOWN;
    allocation->wanted = (struct vgpu_pooled){pool, device, bytes, stream};
    allocation->counted = device != VGPU_DEVICE_UNKNOWN;
    return allocation->counted ? vgpu_memory_reserve_pooled(&allocation->wanted, &allocation->reused) : CUDA_SUCCESS;
}

/* Writes *pointer on success only. */
static CUresult end(const struct allocation *allocation, CUresult result, CUdeviceptr block, CUdeviceptr *pointer)
{
    const struct vgpu_pooled *wanted = &allocation->wanted;
    if (result != CUDA_SUCCESS) {
        vgpu_memory_unreserve_pooled(wanted, &allocation->reused);
        return result;
    }
    result = vgpu_memory_keep_pooled(block, wanted, &allocation->reused);
    if (result == CUDA_SUCCESS)
        *pointer = block;
    else
        (void)vgpu_cuda()->cuMemFreeAsync(block, wanted->stream);
    return result;
}

/* `as_named`: the stream's name for every function; those of the per-thread default stream mean that by NULL. */
#define HOOK(symbol, base, version, flags, parameters)
#define ALLOC(symbol, base, version, flags, parameters, arguments, source, is_capturing, as_named)                 \
    CUresult symbol parameters                                                                                     \
    {                                                                                                              \
        const struct vgpu_cuda *cuda = vgpu_cuda();                                                                \
        struct allocation made = {.counted = false};                                                               \
        CUdeviceptr block = 0;                                                                                     \
        CUresult result = CUDA_SUCCESS;                                                                            \
        if (allocates(pointer, bytes, cuda->is_capturing, stream)) result = begin(&made, source, bytes, as_named); \
        if (result != CUDA_SUCCESS) return result;                                                                 \
        CUdeviceptr *const at = made.counted ? &block : pointer;                                                   \
        result = cuda->symbol arguments;                                                                           \
        return made.counted ? end(&made, result, block, pointer) : result;                                         \
    }
#define WAIT(symbol, base, version, flags, parameters, arguments) \
    CUresult symbol parameters                                    \
    {                                                             \
        const CUresult result = vgpu_cuda()->symbol arguments;    \
        vgpu_leaving_settle();                                    \
        vgpu_pool_look_all(true);                                 \
        return result;                                            \
    }
#include "intercept/cuda.def"

/* A free that a stream records is a node of its graph: the block, if it is ours at all, stays. `as_named`: what the
 * stream is to every function. */
static CUresult free_async(stream_status is_capturing, stream_free real, CUdeviceptr pointer, CUstream stream, CUstream as_named)
{
    struct vgpu_block block;
    if (records(is_capturing, stream)) return real(pointer, stream);
    const bool known = vgpu_memory_take(VGPU_BLOCK_POINTER, pointer, &block);
    const CUresult result = real(pointer, stream);
    if (known)
        vgpu_memory_settle_in_stream(&block, result, as_named);
    else if (result == CUDA_SUCCESS)
        vgpu_opened_closed(pointer);
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return free_async(cuda->cuStreamIsCapturing, cuda->cuMemFreeAsync, pointer, stream, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return free_async(cuda->cuStreamIsCapturing_ptsz, cuda->cuMemFreeAsync_ptsz, pointer, stream, vgpu_per_thread(stream));
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    const CUresult result = vgpu_cuda()->cuMemPoolCreate(pool, properties);
    if (result != CUDA_SUCCESS || !vgpu_state_start()) return result;
    vgpu_pool_made(*pool, vgpu_memory_device_at(properties->allocType, &properties->location));
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct pool *ending = vgpu_pool_end_begin(pool);
    vgpu_leaving_pool_ends(pool);
    const CUresult result = vgpu_cuda()->cuMemPoolDestroy(pool);
    if (result != CUDA_SUCCESS) vgpu_leaving_pool_stays(pool);
    vgpu_pool_end(ending, result);
    vgpu_leaving_settle();
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    const CUresult result = vgpu_cuda()->cuMemPoolTrimTo(pool, keep);
    if (result == CUDA_SUCCESS && vgpu_state_start()) {
        vgpu_leaving_settle();
        vgpu_pool_look(pool);
    }
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    const CUresult result = vgpu_cuda()->cuMemPoolSetAttribute(pool, attribute, value);
    if (result != CUDA_SUCCESS || !vgpu_state_start()) return result;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) vgpu_pool_threshold(pool, *(uint64_t *)value);
    if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) vgpu_pool_opportunistic(pool, *(int *)value != 0);
    return result;
}
