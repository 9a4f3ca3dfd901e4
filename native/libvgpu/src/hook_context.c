/* Start, and the end of contexts: a context that dies frees its memory without a word, so its charges end with it. */
#include "cores.h"
#include "graph_memory.h"
#include "memory.h"
#include "real.h"
#include "runtime.h"

CUresult cuInit(unsigned int flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuInit(flags);
    if (result == CUDA_SUCCESS) vgpu_runtime_register();
    return result;
}

static void forget(CUcontext context)
{
    vgpu_memory_forget_context(context);
    vgpu_cores_forget_context(context);
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext context)
{
    const CUresult result = real(context);
    if (result == CUDA_SUCCESS) forget(context);
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? destroy(cuda->cuCtxDestroy, context) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? destroy(cuda->cuCtxDestroy_v2, context) : CUDA_ERROR_NOT_FOUND;
}

static int primary_is_active(const struct vgpu_cuda *cuda, CUdevice device)
{
    unsigned int flags;
    int active = 0;
    return cuda->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The handle of a live primary context, without changing how often it is retained; NULL if it is not live (retaining would make it). */
static CUcontext primary_of(const struct vgpu_cuda *cuda, CUdevice device)
{
    CUcontext context = NULL;
    if (!primary_is_active(cuda, device) || cuda->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return NULL;
    if (cuda->cuDevicePrimaryCtxRelease_v2(device) == CUDA_ERROR_NOT_FOUND) cuda->cuDevicePrimaryCtxRelease(device);
    return context;
}

/* A release ends the context when it was the last one, a reset always. */
static CUresult end_primary(CUresult (*real)(CUdevice), CUdevice device, int always)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    const CUcontext context = primary_of(cuda, device);
    const CUresult result = real(device);
    if (result == CUDA_SUCCESS && (always || !primary_is_active(cuda, device))) {
        forget(context);
        vgpu_graph_memory_settle(device);
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? end_primary(cuda->cuDevicePrimaryCtxRelease, device, 0) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? end_primary(cuda->cuDevicePrimaryCtxRelease_v2, device, 0) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? end_primary(cuda->cuDevicePrimaryCtxReset, device, 1) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? end_primary(cuda->cuDevicePrimaryCtxReset_v2, device, 1) : CUDA_ERROR_NOT_FOUND;
}
