/* Multicast objects of the stand-in driver: handles that hold physical memory by binding it. */
#include "vmm/physical.h"

CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *properties, int option)
{
    if (bytes == NULL || properties == NULL || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    *bytes = FG_PHYSICAL_UNIT;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    if (handle == NULL || properties == NULL || properties->numDevices == 0 || properties->size % FG_PHYSICAL_UNIT != 0 ||
        properties->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *made = fg_add_physical(FG_MULTICAST, -1, properties->size, true);
    pthread_mutex_unlock(&fg_physical_lock);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (uint64_t)(uintptr_t)made;
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    pthread_mutex_lock(&fg_physical_lock);
    const struct fg_physical *object = fg_physical_of(handle);
    const bool known = object != NULL && object->tag == FG_MULTICAST;
    pthread_mutex_unlock(&fg_physical_lock);
    return known ? fg_check_device(device) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult bind(CUmemGenericAllocationHandle object, size_t at, struct fg_physical *memory, size_t bytes)
{
    struct fg_physical *multicast = fg_physical_of(object);
    if (multicast == NULL || multicast->tag != FG_MULTICAST || memory == NULL || memory->tag != FG_PHYSICAL || bytes > memory->bytes ||
        at + bytes > multicast->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return fg_add_use(object, memory, at, bytes);
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle memory, size_t offset,
                            size_t bytes, unsigned long long flags)
{
    if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = bind(object, at, fg_physical_of(memory), bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = bind(object, at, fg_mapped_over(pointer), bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

/* The second versions name the device, on which the memory must lie. */
static CUresult bind_on(CUmemGenericAllocationHandle object, CUdevice device, size_t at, struct fg_physical *memory, size_t bytes)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    return memory == NULL || memory->device != device ? CUDA_ERROR_INVALID_VALUE : bind(object, at, memory, bytes);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUmemGenericAllocationHandle memory,
                               size_t offset, size_t bytes, unsigned long long flags)
{
    if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = bind_on(object, device, at, fg_physical_of(memory), bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUdeviceptr pointer, size_t bytes,
                                unsigned long long flags)
{
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = bind_on(object, device, at, fg_mapped_over(pointer), bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t at, size_t bytes)
{
    if (fg_check_device(device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fg_physical_lock);
    const bool any = fg_drop_uses(object, at, bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
