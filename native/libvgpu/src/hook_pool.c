/* Stream-ordered memory: charged while it is live, whatever the pool keeps for later. It outlives contexts. */
#include "memory.h"
#include "real.h"
#include "runtime.h"

/* One body for the four allocators: they differ in the real call and in how the block goes back when it cannot be booked. */
#define ALLOCATE(real_call, real_free)                                                             \
    do {                                                                                           \
        CUdeviceptr block = 0;                                                                     \
        CUresult result = vgpu_memory_reserve(device, bytes);                                      \
        if (result != CUDA_SUCCESS) return result;                                                 \
        result = (real_call);                                                                      \
        if (result != CUDA_SUCCESS) {                                                              \
            vgpu_runtime_release(device, bytes);                                                   \
            return result;                                                                         \
        }                                                                                          \
        result = vgpu_memory_keep(VGPU_BLOCK_POINTER, block, device, bytes, NULL);                 \
        if (result != CUDA_SUCCESS) {                                                              \
            (void)(real_free);                                                                     \
            return result;                                                                         \
        }                                                                                          \
        *pointer = block;                                                                          \
        return CUDA_SUCCESS;                                                                       \
    } while (0)

static int device_for(const CUdeviceptr *pointer, size_t bytes)
{
    return pointer != NULL && bytes != 0 ? vgpu_memory_current_device() : -1;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const int device = device_for(pointer, bytes);
    if (device == -1) return cuda->cuMemAllocAsync(pointer, bytes, stream);
    ALLOCATE(cuda->cuMemAllocAsync(&block, bytes, stream), cuda->cuMemFreeAsync(block, stream));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const int device = device_for(pointer, bytes);
    if (device == -1) return cuda->cuMemAllocAsync_ptsz(pointer, bytes, stream);
    ALLOCATE(cuda->cuMemAllocAsync_ptsz(&block, bytes, stream), cuda->cuMemFreeAsync_ptsz(block, stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const int device = device_for(pointer, bytes);
    if (device == -1) return cuda->cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
    ALLOCATE(cuda->cuMemAllocFromPoolAsync(&block, bytes, pool, stream), cuda->cuMemFreeAsync(block, stream));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const int device = device_for(pointer, bytes);
    if (device == -1) return cuda->cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream);
    ALLOCATE(cuda->cuMemAllocFromPoolAsync_ptsz(&block, bytes, pool, stream), cuda->cuMemFreeAsync_ptsz(block, stream));
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    VGPU_MEMORY_FREE(VGPU_BLOCK_POINTER, pointer, cuda->cuMemFreeAsync(pointer, stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    VGPU_MEMORY_FREE(VGPU_BLOCK_POINTER, pointer, cuda->cuMemFreeAsync_ptsz(pointer, stream));
}
