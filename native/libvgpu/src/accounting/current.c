#include "accounting/current.h"

#include "config/devices.h"
#include "intercept/real.h"
#include "state/process_state.h"

static bool is_the_hosts(int type, int place)
{
    return type == CU_MEM_ALLOCATION_TYPE_PINNED && place >= CU_MEM_LOCATION_TYPE_HOST && place <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool vgpu_memory_located(int type, const CUmemLocation *place, CUdevice *device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (is_the_hosts(type, place->type)) return false;
    if (place->type == CU_MEM_LOCATION_TYPE_DEVICE) return cuda->cuDeviceGet(device, place->id) == CUDA_SUCCESS;
    if (place->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) return cuda->cuDeviceGet(device, place->id & 0xff) == CUDA_SUCCESS;
    return cuda->cuCtxGetDevice(device) == CUDA_SUCCESS || cuda->cuDeviceGet(device, 0) == CUDA_SUCCESS;
}

int vgpu_memory_device_at(int type, const CUmemLocation *place)
{
    CUdevice device;
    return vgpu_memory_located(type, place, &device) && vgpu_state_start() != NULL ? vgpu_state_cuda_device(device) : VGPU_DEVICE_UNKNOWN;
}

int vgpu_memory_current_device(void)
{
    CUdevice device;
    if (vgpu_cuda()->cuCtxGetDevice(&device) != CUDA_SUCCESS) return VGPU_DEVICE_UNKNOWN;
    if (vgpu_state_start() == NULL) return VGPU_DEVICE_UNKNOWN;
    return vgpu_state_cuda_device(device);
}

const void *vgpu_memory_current_context(void)
{
    CUcontext context = NULL;
    return vgpu_cuda()->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}
