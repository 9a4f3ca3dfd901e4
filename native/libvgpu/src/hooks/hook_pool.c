/* Stream-ordered memory: charged while it is live, and while its pool keeps it. It outlives contexts.
 *
 * While a stream records a graph nothing is allocated: the call becomes a node, and the graph is charged when it runs.
 */
#include "config/devices.h"
#include "memory/charge.h"
#include "memory/pool.h"
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

/* One body for the four allocators: they differ in the real call and in how the block goes back when it cannot be
 * entered. */
#define ALLOCATE(from, is_capturing, real_call, real_free)                                         \
    do {                                                                                           \
        if (pointer == NULL || bytes == 0 || !vgpu_state_start() || records((is_capturing), stream)) return (real_call); \
        const CUmemoryPool from_ = (from);                                                         \
        const int device_ = from_ != NULL ? vgpu_pool_device(from_) : VGPU_DEVICE_UNKNOWN;         \
        if (device_ == VGPU_DEVICE_UNKNOWN) return (real_call);                                    \
        uint64_t reused_;                                                                          \
        CUresult result_ = vgpu_memory_reserve_pooled(from_, device_, bytes, &reused_);            \
        if (result_ != CUDA_SUCCESS) return result_;                                               \
        CUdeviceptr *const wanted_ = pointer, block_ = 0;                                          \
        pointer = &block_;                                                                         \
        result_ = (real_call);                                                                     \
        if (result_ == CUDA_SUCCESS) result_ = vgpu_memory_keep_pooled(block_, device_, bytes, from_); \
        else vgpu_memory_unreserve_pooled(from_, device_, bytes, reused_);                         \
        if (result_ == CUDA_SUCCESS) *wanted_ = block_;                                            \
        else if (block_ != 0) (void)(real_free)(block_, stream);                                   \
        return result_;                                                                            \
    } while (0)

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    ALLOCATE(pool_of(stream), cuda->cuStreamIsCapturing, cuda->cuMemAllocAsync(pointer, bytes, stream), cuda->cuMemFreeAsync);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    ALLOCATE(pool_of(stream), cuda->cuStreamIsCapturing_ptsz, cuda->cuMemAllocAsync_ptsz(pointer, bytes, stream), cuda->cuMemFreeAsync_ptsz);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    ALLOCATE(pool, cuda->cuStreamIsCapturing, cuda->cuMemAllocFromPoolAsync(pointer, bytes, pool, stream), cuda->cuMemFreeAsync);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    ALLOCATE(pool, cuda->cuStreamIsCapturing_ptsz, cuda->cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream), cuda->cuMemFreeAsync_ptsz);
}

/* A free that a stream records is a node of its graph: the block, if it is ours at all, stays. */
static CUresult free_async(stream_status is_capturing, stream_free real, CUdeviceptr pointer, CUstream stream)
{
    if (records(is_capturing, stream)) return real(pointer, stream);
    VGPU_MEMORY_FREE(VGPU_BLOCK_POINTER, pointer, real(pointer, stream));
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? free_async(cuda->cuStreamIsCapturing, cuda->cuMemFreeAsync, pointer, stream) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? free_async(cuda->cuStreamIsCapturing_ptsz, cuda->cuMemFreeAsync_ptsz, pointer, stream) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemPoolCreate(pool, properties);
    if (result != CUDA_SUCCESS || !vgpu_state_start()) return result;
    CUdevice device;
    /* A pool of managed memory may name no place at all: its memory is counted where it is asked for, like cuMemAllocManaged's. */
    if (properties->location.type == CU_MEM_LOCATION_TYPE_INVALID) return result;
    const bool counted = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && cuda->cuDeviceGet(&device, properties->location.id) == CUDA_SUCCESS;
    vgpu_pool_made(*pool, counted ? vgpu_state_cuda_device(device) : VGPU_DEVICE_UNKNOWN);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    struct pool *ending = vgpu_pool_end_begin(pool);
    const CUresult result = cuda->cuMemPoolDestroy(pool);
    vgpu_pool_end(ending, result);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemPoolTrimTo(pool, keep);
    if (result == CUDA_SUCCESS && vgpu_state_start()) vgpu_pool_trimmed(pool, keep);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemPoolSetAttribute(pool, attribute, value);
    if (result == CUDA_SUCCESS && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && vgpu_state_start()) vgpu_pool_threshold(pool, *(uint64_t *)value);
    return result;
}
