#include "accounting/current.h"

#include "config/devices.h"
#include "intercept/real.h"
#include "state/process_state.h"

int vgpu_memory_current_device(void)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUdevice device;
    if (cuda == NULL || cuda->cuCtxGetDevice(&device) != CUDA_SUCCESS) return VGPU_DEVICE_UNKNOWN;
    if (vgpu_state_start() == NULL) return VGPU_DEVICE_UNKNOWN;
    return vgpu_state_cuda_device(device);
}

const void *vgpu_memory_current_context(void)
{
    CUcontext context = NULL;
    return vgpu_cuda()->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}
