/* Logical endpoints: numbers that physical memory is bound to, as to multicast objects. What this process has bound stays alive until it
 * is unbound or the endpoint is destroyed. */
#include "intercept/real.h"
#include "state/process_state.h"
#include "vmm/mapping.h"
#include "vmm/physical.h"

/* As an owner of bindings: no handle and no address has the highest bit. */
static uint64_t owner_of(CUlogicalEndpointId endpoint) { return UINT64_C(1) << 63 | endpoint; }

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t at, CUmemGenericAllocationHandle memory,
                                  cuuint64_t offset, cuuint64_t bytes, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuLogicalEndpointBindMem(endpoint, device, at, memory, offset, bytes, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_bound(owner_of(endpoint), at, memory);
    return result;
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t at, void *pointer, cuuint64_t bytes,
                                   unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuLogicalEndpointBindAddr(endpoint, device, at, pointer, bytes, flags);
    if (result == CUDA_SUCCESS) vgpu_physical_bound_address(owner_of(endpoint), at, (CUdeviceptr)(uintptr_t)pointer);
    return result;
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t at, cuuint64_t bytes)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuLogicalEndpointUnbind(endpoint, device, at, bytes);
    if (result == CUDA_SUCCESS && vgpu_state_start()) vgpu_physical_unbound(owner_of(endpoint), vgpu_state_cuda_device(device), at, bytes);
    return result;
}

CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId endpoint)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuLogicalEndpointDestroy(endpoint);
    if (result == CUDA_SUCCESS) vgpu_physical_owner_gone(owner_of(endpoint));
    return result;
}
