/* Physical memory by handle: charged to the device that the properties name; no context is needed. */
#include "config/devices.h"
#include "memory/charge.h"
#include "accounting/current.h"
#include "vmm/mapping.h"
#include "vmm/physical.h"
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
    struct vgpu_physical *memory = vgpu_physical_release_begin(handle);
    const CUresult result = vgpu_cuda()->cuMemRelease(handle);
    vgpu_physical_release_end(memory, result);
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
    const CUresult result = vgpu_cuda()->cuMemImportFromShareableHandle(handle, shareable, type);
    if (result == CUDA_SUCCESS) vgpu_physical_imported(*handle, imported_device(*handle));
    return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    struct vgpu_use *mappings = vgpu_physical_unmap_begin(pointer, bytes);
    const CUresult result = vgpu_cuda()->cuMemUnmap(pointer, bytes);
    vgpu_physical_unmap_end(mappings, result);
    return result;
}
