/* Physical memory by handle: charged to the device that the properties name; no context is needed. */
#include "config/devices.h"
#include "memory/charge.h"
#include "accounting/current.h"
#include "vmm/mapping.h"
#include "vmm/physical.h"
#include "vmm/tiles.h"
#include "intercept/real.h"
#include "state/process_state.h"
#include "accounting/slice.h"

static int device_of(const CUmemAllocationProp *properties)
{
    return properties != NULL ? vgpu_memory_device_at(properties->type, &properties->location) : VGPU_DEVICE_UNKNOWN;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const int device = handle != NULL && bytes != 0 ? device_of(properties) : VGPU_DEVICE_UNKNOWN;
    if (device == VGPU_DEVICE_UNKNOWN) return cuda->cuMemCreate(handle, bytes, properties, flags);
    CUmemGenericAllocationHandle created;
    CUresult result = vgpu_memory_reserve(device, bytes);
    if (result != CUDA_SUCCESS) return result;
    result = cuda->cuMemCreate(&created, bytes, properties, flags);
    if (result != CUDA_SUCCESS) {
        vgpu_slice_release(device, bytes);
        return result;
    }
    result = vgpu_physical_made(created, device, bytes);
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
    struct vgpu_physical *memory = vgpu_physical_release_begin(handle);
    const CUresult result = cuda->cuMemRelease(handle);
    vgpu_physical_release_end(memory, result);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemRetainAllocationHandle(handle, address);
    if (result == CUDA_SUCCESS) vgpu_physical_retained(*handle);
    return result;
}

/* Where the driver does not name the place, that of the thread. */
static int imported_device(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp properties;
    if (vgpu_cuda()->cuMemGetAllocationPropertiesFromHandle(&properties, handle) == CUDA_SUCCESS) return device_of(&properties);
    return vgpu_memory_current_device();
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemImportFromShareableHandle(handle, shareable, type);
    if (result == CUDA_SUCCESS) vgpu_physical_imported(*handle, imported_device(*handle));
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemExportToShareableHandle(shareable, handle, type, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_exported(handle);
    return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemMap(pointer, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_mapped(pointer, bytes, handle);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    struct vgpu_use *mappings = vgpu_physical_unmap_begin(pointer, bytes);
    const CUresult result = cuda->cuMemUnmap(pointer, bytes);
    vgpu_physical_unmap_end(mappings, result);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *tiles, unsigned int count, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemMapArrayAsync(tiles, count, stream);
    if (result == CUDA_SUCCESS) vgpu_tiles_changed(tiles, count);
    return result;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *tiles, unsigned int count, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemMapArrayAsync_ptsz(tiles, count, stream);
    if (result == CUDA_SUCCESS) vgpu_tiles_changed(tiles, count);
    return result;
}

/* A multicast object has no memory of its own; what is bound to it stays alive as long as it. */
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMulticastCreate(handle, properties);
    if (result == CUDA_SUCCESS) (void)vgpu_physical_made(*handle, VGPU_DEVICE_UNKNOWN, 0);
    return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle memory, size_t offset,
                            size_t bytes, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMulticastBindMem(object, at, memory, offset, bytes, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_bound(object, at, memory);
    return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMulticastBindAddr(object, at, pointer, bytes, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_bound_address(object, at, pointer);
    return result;
}

/* The second versions name the device that the memory is on. */
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUmemGenericAllocationHandle memory,
                               size_t offset, size_t bytes, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMulticastBindMem_v2(object, device, at, memory, offset, bytes, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_bound(object, at, memory);
    return result;
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUdeviceptr pointer, size_t bytes,
                                unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMulticastBindAddr_v2(object, device, at, pointer, bytes, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_bound_address(object, at, pointer);
    return result;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t at, size_t bytes)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMulticastUnbind(object, device, at, bytes);
    if (result == CUDA_SUCCESS && vgpu_state_start()) vgpu_physical_unbound(object, vgpu_state_cuda_device(device), at, bytes);
    return result;
}
