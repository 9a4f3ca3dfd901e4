/* Contexts. A context takes memory of the card that no call names: what it took is looked up after. One that
 * ends frees its memory without a call for each block, so its charges end with it. Every hook that changes the thread's
 * current context reports it (core_terms.h). */
#include "compute/core_terms.h"
#include "compute/cores.h"
#include "memory/graph_memory.h"
#include "memory/charge.h"
#include "memory/context_limit.h"
#include "accounting/overhead.h"
#include "intercept/real.h"
#include "state/process_state.h"

static void forget(CUcontext context, uint32_t begun)
{
    vgpu_cores_device_changed();
    vgpu_memory_forget_context(context, begun);
    vgpu_cores_forget_context(context);
}

static void pass(CUcontext context, CUcontext to, uint32_t begun)
{
    vgpu_cores_device_changed();
    vgpu_memory_pass_context(context, to, begun);
    vgpu_cores_forget_context(context);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    unsigned int flags;
    int active = 0;
    /* Retained again it costs nothing more. */
    if (cuda->cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS) active = 0;
    const CUresult result = cuda->cuDevicePrimaryCtxRetain(context, device);
    if (result == CUDA_SUCCESS && !active) vgpu_overhead_settle(device);
    return result;
}

/* A new context is the thread's current one. */
#define HOOK(symbol, base, version, flags, parameters)
#define CONTEXT(symbol, base, version, flags, parameters, arguments) \
    CUresult symbol parameters                                       \
    {                                                                \
        const CUresult result = vgpu_cuda()->symbol arguments;       \
        vgpu_cores_device_changed();                                 \
        if (result == CUDA_SUCCESS) vgpu_overhead_settle(device);    \
        return result;                                               \
    }
#define CURRENT(symbol, base, version, flags, parameters, arguments) \
    CUresult symbol parameters                                       \
    {                                                                \
        vgpu_cores_device_changed();                                 \
        return vgpu_cuda()->symbol arguments;                        \
    }
#include "intercept/cuda.def"

CUresult cuCtxSetLimit(int limit, size_t value) { return vgpu_context_limit_set(limit, value); }

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext context)
{
    const uint32_t begun = vgpu_memory_end_begin();
    const CUresult result = real(context);
    if (result == CUDA_SUCCESS) forget(context, begun);
    return result;
}

CUresult cuCtxDestroy(CUcontext context) { return destroy(vgpu_cuda()->cuCtxDestroy, context); }
CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(vgpu_cuda()->cuCtxDestroy_v2, context); }

/* Ends the context when nobody else is attached to it; then it is no longer current. */
CUresult cuCtxDetach(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUcontext before = NULL, after = NULL;
    (void)cuda->cuCtxGetCurrent(&before);
    const uint32_t begun = vgpu_memory_end_begin();
    const CUresult result = cuda->cuCtxDetach(context);
    if (result != CUDA_SUCCESS) return result;
    vgpu_cores_device_changed();
    if (before == context && cuda->cuCtxGetCurrent(&after) == CUDA_SUCCESS && after != context) forget(context, begun);
    return result;
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
    const uint32_t begun = vgpu_memory_end_begin();
    const CUresult result = real(device);
    if (result == CUDA_SUCCESS && (always || !primary_is_active(cuda, device))) {
        forget(context, begun);
        vgpu_graph_memory_settle(device);
    }
    return result;
}

static bool device_of(const struct vgpu_cuda *cuda, CUcontext context, CUdevice *device)
{
    CUcontext popped;
    if (cuda->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return false;
    const CUresult result = cuda->cuCtxGetDevice(device);
    cuda->cuCtxPopCurrent_v2(&popped);
    return result == CUDA_SUCCESS;
}

/* It gives its device's primary context back, which may be the end of that. What was allocated in it belongs to the context that
 * cuCtxFromGreenCtx names, and lives on with the primary context (H100). */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUcontext context = NULL, primary = NULL;
    CUdevice device = 0;
    if (cuda->cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS) context = NULL;
    if (context != NULL && device_of(cuda, context, &device)) primary = primary_of(cuda, device);
    const uint32_t begun = vgpu_memory_end_begin();
    const CUresult result = cuda->cuGreenCtxDestroy(green);
    if (result != CUDA_SUCCESS) return result;
    if (primary != NULL && primary_is_active(cuda, device)) {
        pass(context, primary, begun);
    } else {
        forget(context, begun);
        forget(primary, begun); /* NULL: nothing is known of it */
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return end_primary(vgpu_cuda()->cuDevicePrimaryCtxRelease, device, 0); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return end_primary(vgpu_cuda()->cuDevicePrimaryCtxRelease_v2, device, 0); }
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return end_primary(vgpu_cuda()->cuDevicePrimaryCtxReset, device, 1); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return end_primary(vgpu_cuda()->cuDevicePrimaryCtxReset_v2, device, 1); }
