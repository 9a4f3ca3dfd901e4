/* Ordinary device memory: reserve, ask the driver, enter the charge. The outputs are written on success only. */
#include "memory/charge.h"
#include "accounting/current.h"
#include "pools/leaving.h"
#include "pools/pool.h"
#include "memory/opened.h"
#include "accounting/overhead.h"
#include "config/quota.h"
#include "intercept/real.h"
#include "state/process_state.h"
#include "accounting/slice.h"

/* Rows of pitched memory are at most this far apart beyond their width on any card so far; the true pitch is charged afterwards. */
enum { PITCH_ALIGNMENT = 512 };

/* Enters the charge of a block that the driver has made (`made`), or gives its reservation back; a block that there is no memory to
 * remember goes back to the driver. Writes *pointer on success only. */
static CUresult keep(const struct vgpu_cuda *cuda, CUresult made, CUdeviceptr block, int device, uint64_t bytes, CUdeviceptr *pointer)
{
    if (made != CUDA_SUCCESS) {
        vgpu_slice_release(device, bytes);
        return made;
    }
    const CUresult result = vgpu_memory_keep(VGPU_BLOCK_POINTER, block, device, bytes, vgpu_memory_current_context());
    if (result == CUDA_SUCCESS)
        *pointer = block;
    else
        cuda->cuMemFree_v2(block);
    return result;
}

/* When the card is full but the slice is not, and more was promised than the card has: managed memory, which the driver keeps on the
 * host and moves. Freed like any other. */
static CUresult from_host(const struct vgpu_cuda *cuda, CUresult refused, CUdeviceptr *block, uint64_t bytes)
{
    if (refused != CUDA_ERROR_OUT_OF_MEMORY || !vgpu_slice_oversubscribes()) return refused;
    return cuda->cuMemAllocManaged(block, bytes, CU_MEM_ATTACH_GLOBAL);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    const int device = pointer != NULL && bytes != 0 ? vgpu_memory_current_device() : -1;
    if (device == -1) return cuda->cuMemAlloc_v2(pointer, bytes);
    CUdeviceptr block = 0;
    CUresult result = vgpu_memory_reserve(device, bytes);
    if (result != CUDA_SUCCESS) return result;
    result = from_host(cuda, cuda->cuMemAlloc_v2(&block, bytes), &block, bytes);
    return keep(cuda, result, block, device, bytes, pointer);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    const int device = pointer != NULL && bytes != 0 ? vgpu_memory_current_device() : -1;
    if (device == -1) return cuda->cuMemAllocManaged(pointer, bytes, flags);
    CUdeviceptr block = 0;
    CUresult result = vgpu_memory_reserve(device, bytes);
    if (result != CUDA_SUCCESS) return result;
    result = cuda->cuMemAllocManaged(&block, bytes, flags);
    return keep(cuda, result, block, device, bytes, pointer);
}

/* Only the driver knows the pitch: `reserved` was an estimate, `actual` is the truth. */
static CUresult correct_reservation(int device, uint64_t reserved, uint64_t actual)
{
    if (actual > reserved) return vgpu_memory_reserve(device, actual - reserved);
    if (actual < reserved) vgpu_slice_release(device, reserved - actual);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height, unsigned int element_bytes)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    const uint64_t row = ((uint64_t)width_bytes + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    uint64_t estimate;
    const bool usable =
        pointer != NULL && pitch != NULL && row >= width_bytes && !__builtin_mul_overflow(row, height, &estimate) && estimate != 0;
    const int device = usable ? vgpu_memory_current_device() : -1;
    if (device == -1) return cuda->cuMemAllocPitch_v2(pointer, pitch, width_bytes, height, element_bytes);
    CUdeviceptr block = 0;
    size_t actual_pitch;
    CUresult result = vgpu_memory_reserve(device, estimate);
    if (result != CUDA_SUCCESS) return result;
    result = cuda->cuMemAllocPitch_v2(&block, &actual_pitch, width_bytes, height, element_bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        actual_pitch = (size_t)row;
        result = from_host(cuda, result, &block, estimate);
    }
    const uint64_t actual = result == CUDA_SUCCESS ? (uint64_t)actual_pitch * height : estimate;
    const CUresult corrected = correct_reservation(device, estimate, actual);
    if (corrected != CUDA_SUCCESS) {
        cuda->cuMemFree_v2(block);
        vgpu_slice_release(device, estimate);
        return corrected;
    }
    result = keep(cuda, result, block, device, actual, pointer);
    if (result == CUDA_SUCCESS) *pitch = actual_pitch;
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    struct vgpu_block block;
    const bool known = vgpu_memory_take(VGPU_BLOCK_POINTER, pointer, &block);
    const CUresult result = vgpu_cuda()->cuMemFree_v2(pointer);
    if (__builtin_expect(known, 1)) {
        vgpu_memory_settle(&block, result);
        return result;
    }
    if (result == CUDA_SUCCESS) vgpu_opened_closed(pointer); /* of a pool of another process */
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    size_t real_free = 0, real_total = 0;
    vgpu_leaving_settle();
    vgpu_pool_look_all(false);
    const CUresult result = vgpu_cuda()->cuMemGetInfo_v2(&real_free, &real_total);
    if (result != CUDA_SUCCESS) return result;
    vgpu_overhead_look_before_answer();
    const int device = vgpu_memory_current_device();
    const struct vgpu_quota_view view = (vgpu_slice_oversubscribes() ? vgpu_quota_view_oversubscribed : vgpu_quota_view)(
        vgpu_slice_limit(device), vgpu_slice_used(device), real_total, real_free);
    if (free_bytes != NULL) *free_bytes = view.free;
    if (total_bytes != NULL) *total_bytes = view.total;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const CUresult result = vgpu_cuda()->cuDeviceTotalMem_v2(bytes, device);
    if (result != CUDA_SUCCESS || bytes == NULL || !vgpu_state_start()) return result;
    *bytes = (vgpu_slice_oversubscribes() ? vgpu_quota_view_oversubscribed
                                          : vgpu_quota_view)(vgpu_slice_limit(vgpu_state_cuda_device(device)), 0, *bytes, 0)
                 .total;
    return CUDA_SUCCESS;
}
