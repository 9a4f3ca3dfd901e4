/* Waiting for the device: of what streams have freed by then the card has again what pools do not keep, and that is no longer
 * charged (pools/leaving.h, pools/pool.h). */
#include "intercept/real.h"
#include "pools/leaving.h"
#include "pools/pool.h"

static CUresult waited(CUresult result)
{
    vgpu_leaving_settle();
    vgpu_pool_look_all(true);
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? waited(cuda->cuStreamSynchronize(stream)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? waited(cuda->cuStreamSynchronize_ptsz(stream)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuEventSynchronize(CUevent event)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? waited(cuda->cuEventSynchronize(event)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxSynchronize(void)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? waited(cuda->cuCtxSynchronize()) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? waited(cuda->cuCtxSynchronize_v2(context)) : CUDA_ERROR_NOT_FOUND;
}
