/* Stream-ordered memory: charged while it is live, until the stream that frees it is there, and as long as its pool keeps it.
 * It outlives contexts.
 *
 * While a stream records a graph nothing is allocated: the call becomes a node, and the graph is charged when it runs.
 */
#include "config/devices.h"
#include "accounting/current.h"
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

/* What the four allocators have in common; they differ in the real call, and in how the block goes back when it cannot
 * be entered. Writes *pointer on success only. */
struct allocation {
    struct vgpu_pooled wanted;
    struct vgpu_reused reused;
    bool counted;
};

/* CUDA_SUCCESS: go on. Not counted: the driver's affair alone. */
static CUresult begin(struct allocation *allocation, CUmemoryPool pool, size_t bytes, CUstream stream)
{
    const int device = pool != NULL ? vgpu_pool_device(pool) : VGPU_DEVICE_UNKNOWN;
    allocation->wanted = (struct vgpu_pooled){pool, device, bytes, stream};
    allocation->counted = device != VGPU_DEVICE_UNKNOWN;
    return allocation->counted ? vgpu_memory_reserve_pooled(&allocation->wanted, &allocation->reused) : CUDA_SUCCESS;
}

static CUresult end(const struct allocation *allocation, CUresult result, const CUdeviceptr *block, stream_free real_free,
                    CUdeviceptr *pointer)
{
    const struct vgpu_pooled *wanted = &allocation->wanted;
    if (result != CUDA_SUCCESS) {
        vgpu_memory_unreserve_pooled(wanted, &allocation->reused);
        return result;
    }
    result = vgpu_memory_keep_pooled(*block, wanted, &allocation->reused);
    if (result == CUDA_SUCCESS)
        *pointer = *block;
    else
        (void)real_free(*block, wanted->stream);
    return result;
}

/* While a stream records, or where nothing is asked for, nothing is allocated. */
static bool allocates(const CUdeviceptr *pointer, size_t bytes, stream_status is_capturing, CUstream stream)
{
    return pointer != NULL && bytes != 0 && vgpu_state_start() != NULL && !records(is_capturing, stream);
}

/* The functions of the per-thread default stream mean that by NULL. */
static CUstream per_thread(CUstream stream) { return stream != NULL ? stream : VGPU_STREAM_PER_THREAD; }

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    struct allocation made;
    CUdeviceptr block = 0;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    if (!allocates(pointer, bytes, cuda->cuStreamIsCapturing, stream)) return cuda->cuMemAllocAsync(pointer, bytes, stream);
    const CUresult result = begin(&made, pool_of(stream), bytes, stream);
    if (result != CUDA_SUCCESS) return result;
    if (!made.counted) return cuda->cuMemAllocAsync(pointer, bytes, stream);
    return end(&made, cuda->cuMemAllocAsync(&block, bytes, stream), &block, cuda->cuMemFreeAsync, pointer);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    struct allocation made;
    CUdeviceptr block = 0;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    if (!allocates(pointer, bytes, cuda->cuStreamIsCapturing_ptsz, stream)) return cuda->cuMemAllocAsync_ptsz(pointer, bytes, stream);
    const CUresult result = begin(&made, pool_of(stream), bytes, per_thread(stream));
    if (result != CUDA_SUCCESS) return result;
    if (!made.counted) return cuda->cuMemAllocAsync_ptsz(pointer, bytes, stream);
    return end(&made, cuda->cuMemAllocAsync_ptsz(&block, bytes, stream), &block, cuda->cuMemFreeAsync, pointer);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    struct allocation made;
    CUdeviceptr block = 0;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    if (!allocates(pointer, bytes, cuda->cuStreamIsCapturing, stream)) return cuda->cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
    const CUresult result = begin(&made, pool, bytes, stream);
    if (result != CUDA_SUCCESS) return result;
    if (!made.counted) return cuda->cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
    return end(&made, cuda->cuMemAllocFromPoolAsync(&block, bytes, pool, stream), &block, cuda->cuMemFreeAsync, pointer);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    struct allocation made;
    CUdeviceptr block = 0;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    if (!allocates(pointer, bytes, cuda->cuStreamIsCapturing_ptsz, stream))
        return cuda->cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream);
    const CUresult result = begin(&made, pool, bytes, per_thread(stream));
    if (result != CUDA_SUCCESS) return result;
    if (!made.counted) return cuda->cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream);
    return end(&made, cuda->cuMemAllocFromPoolAsync_ptsz(&block, bytes, pool, stream), &block, cuda->cuMemFreeAsync, pointer);
}

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
    return cuda != NULL ? free_async(cuda->cuStreamIsCapturing, cuda->cuMemFreeAsync, pointer, stream, stream) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    return free_async(cuda->cuStreamIsCapturing_ptsz, cuda->cuMemFreeAsync_ptsz, pointer, stream, per_thread(stream));
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemPoolCreate(pool, properties);
    if (result != CUDA_SUCCESS || !vgpu_state_start()) return result;
    vgpu_pool_made(*pool, vgpu_memory_device_at(properties->allocType, &properties->location));
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    struct pool *ending = vgpu_pool_end_begin(pool);
    vgpu_leaving_pool_ends(pool);
    const CUresult result = cuda->cuMemPoolDestroy(pool);
    if (result != CUDA_SUCCESS) vgpu_leaving_pool_stays(pool);
    vgpu_pool_end(ending, result);
    vgpu_leaving_settle();
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemPoolTrimTo(pool, keep);
    if (result == CUDA_SUCCESS && vgpu_state_start()) {
        vgpu_leaving_settle();
        vgpu_pool_look(pool);
    }
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemPoolSetAttribute(pool, attribute, value);
    if (result != CUDA_SUCCESS || !vgpu_state_start()) return result;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) vgpu_pool_threshold(pool, *(uint64_t *)value);
    if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) vgpu_pool_opportunistic(pool, *(int *)value != 0);
    return result;
}
