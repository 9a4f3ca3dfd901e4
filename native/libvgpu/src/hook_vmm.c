/* Physical memory by handle (cuMemCreate): charged to the device that the properties name; no context is needed. */
#include "memory.h"
#include "real.h"
#include "runtime.h"

static int device_of(const CUmemAllocationProp *properties)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUdevice device;
    if (properties == NULL || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        cuda->cuDeviceGet(&device, properties->location.id) != CUDA_SUCCESS || !vgpu_runtime_start())
        return -1;
    return vgpu_runtime_cuda_device(device);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const int device = handle != NULL && bytes != 0 ? device_of(properties) : -1;
    if (device == -1) return cuda->cuMemCreate(handle, bytes, properties, flags);
    CUmemGenericAllocationHandle created;
    CUresult result = vgpu_memory_reserve(device, bytes);
    if (result != CUDA_SUCCESS) return result;
    result = cuda->cuMemCreate(&created, bytes, properties, flags);
    if (result != CUDA_SUCCESS) {
        vgpu_runtime_release(device, bytes);
        return result;
    }
    result = vgpu_memory_keep(VGPU_BLOCK_HANDLE, created, device, bytes, NULL);
    if (result != CUDA_SUCCESS)
        cuda->cuMemRelease(created);
    else
        *handle = created;
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    VGPU_MEMORY_FREE(VGPU_BLOCK_HANDLE, handle, cuda->cuMemRelease(handle));
}
